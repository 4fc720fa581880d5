"""Reading and writing any path: local, http(s), buckets of S3 and OSS, packages, the Hugging Face hub, tables.

On this machine: `files` (atomic, and JSON), `settle` (folders that are complete or absent), `locks` (of processes, and
whether a former writer is over), `cache` (fetched files; digests), `archives` (unpacked), `tensors` (with a checksum).

Remote files: `locations` (addresses, parsed and checked), `filesystems` (of fsspec), `refusals` (errors, in our words,
and what is tried again), `access` (one file or folder), `transfer_in_parts` (large files), `objects` (below one
folder).

What commands use: `resources` (any reference, fetched), `required` (addresses that are asked for before jobs are
submitted), `transfer` (copy, synchronize, remove), `outputs` (results, here or in a bucket), `tables` (of MaxCompute).

Shared by hosts: `pointer` (which files of a mirror count, and who may write), `run_copies` (run folders in a bucket,
for reading).
"""
