"""python fetch.py ARCHIVE SHA256 FOLDER: fetch the code of a job and unpack it; runs before nlu is there."""

import hashlib
import io
import json
import os
import sys
import tarfile
import urllib.request


def main(address: str, digest: str, folder: str) -> None:
    """Unpack the archive into the folder, or end with one line that says what is wrong."""
    if sys.version_info < (3, 11):
        sys.exit("this image has Python %d.%d, but nlu needs 3.11 or newer; choose another" % sys.version_info[:2])
    try:
        # An image may lack it. The drivers of stores repeat requests by themselves.
        import fsspec

        filesystem, path = fsspec.url_to_fs(address, **options(address))
        content = filesystem.cat_file(path)
    except Exception as error:
        sys.exit("the code cannot be fetched from %s: %s: %s" % (address, type(error).__name__, error))
    if hashlib.sha256(content).hexdigest() != digest:
        sys.exit("%s is not the code that was submitted: its sha256 is not %s" % (address, digest))
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        # Its digest says that it is ours, and early versions of Python 3.11 have no filters.
        archive.extractall(folder)


def options(address: str) -> dict:
    """Return the credentials that the platform gives a job by its role; none if the environment has some."""
    uri = os.environ.get("ALIBABA_CLOUD_CREDENTIALS_URI")
    if not uri or not address.startswith("oss://") or "FSSPEC_OSS_KEY" in os.environ:
        return {}
    with urllib.request.urlopen(uri, timeout=30) as answer:
        given = json.load(answer)
    return {"key": given["AccessKeyId"], "secret": given["AccessKeySecret"], "token": given["SecurityToken"]}


if __name__ == "__main__":
    main(*sys.argv[1:4])
