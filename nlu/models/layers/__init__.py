"""What encoders and heads are built from; results of a row do not depend on the rows beside it."""
