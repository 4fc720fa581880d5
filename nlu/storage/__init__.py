"""Reading and writing any path: local, http(s), buckets of S3 and OSS, packages, the Hugging Face hub, tables.

On this machine:

    files        atomic files, and JSON in them
    settle       folders that are complete or absent
    locks        locks between processes
    heartbeat    whether another process is alive
    cache        fetched files, each complete or absent; digests

Names and rules:

    environment  variables with endpoints and credentials; keys by role
    redaction    what a secret looks like, and how it is hidden
    places       addresses, parsed and checked; local files of a data set
    temporary    which failures are temporary, and the loop that retries

Backends, which read and write places:

    backend      the contract, and the disk
    bucket       the contract of a bucket, and its errors
    buckets      S3 and OSS
    parts        large files, in parts that survive an interruption
    objects      objects of a bucket, by place or by key; the choice of a backend
    web          http(s)

What commands use:

    resources    any reference, fetched to a local path
    packages     files from package archives
    tables       MaxCompute
    transfer     copy, move, synchronize, remove
    outputs      results, written here or to a bucket
    copies       run folders in a bucket, copied here for reading
    ledger       who may write to a folder of a bucket
"""
