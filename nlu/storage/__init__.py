"""Getting files by reference: a local path, a URL, an object store, a package archive or a model hub."""
