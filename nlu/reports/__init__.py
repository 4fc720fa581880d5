"""Reading run folders back: tables over many of them, the difference of two, what of them can be freed."""
