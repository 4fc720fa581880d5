"""Reading and writing any path: local, http(s), buckets of S3 and OSS, packages, the Hugging Face hub, tables.

On this machine: `files` (atomic, and JSON), `settle` (folders that are complete or absent), `locks` (of processes),
`cache` (fetched files; digests), `unpacking`, `tensors` and `checksum`.

Remote files: `places` (addresses, parsed and checked), `filesystems` (of fsspec), `refusals` (errors, in our words),
`temporary` (what is tried again), `access` (one file or folder), `parts` (large files), `objects` (below one folder).

What commands use: `resources` (any reference, fetched), with `hub` and `packages`; `required` (addresses that are asked
for before jobs are submitted); `transfer` (copy, synchronize, remove); `outputs` (results, here or in a bucket).

Shared by hosts: `pointer` (which files of a mirror count, and who may write), `writers` (whether a former writer is
over), `copies` (run folders in a bucket, for reading).
"""
