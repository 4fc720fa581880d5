"""Building blocks of encoders and heads. The result of a row does not depend on other rows of the batch."""
