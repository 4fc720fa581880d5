"""Methods run the forward and backward passes of a micro-batch: plain training, R-Drop, FGM, FreeLB."""
