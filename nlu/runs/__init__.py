"""What a run leaves in its folder, written so that a kill at any moment leaves it readable."""
