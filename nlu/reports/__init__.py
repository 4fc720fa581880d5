"""Reports over run folders: tables of many, differences of some, errors of one, and disk space that can be freed."""
