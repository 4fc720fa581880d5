"""Where a study is kept: journals in a file or an object store, databases, and which search holds it."""
