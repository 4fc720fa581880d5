"""Methods own forward and backward of a micro-batch: plain training, and what changes it (R-Drop, FGM, FreeLB)."""
