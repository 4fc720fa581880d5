"""CRC-32C (Castagnoli), the checksum of LevelDB and TensorFlow, fast enough for the weights of a large encoder.

The checksum is linear, so pieces are processed in parallel, one byte of each at a time, and then joined in pairs: the
first one is shifted by as many zero bytes as the second one has bytes.

Axes: P pieces, a power of two; L bytes of a piece.
"""

import numpy as np

POLYNOMIAL = 0x82F63B78
MASK_DELTA = 0xA282EAD8
PIECE_BYTES = 2048
ONES = 0xFFFFFFFF


def _table() -> np.ndarray:
    values = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        values = np.where(values & 1, values >> 1 ^ np.uint32(POLYNOMIAL), values >> 1)
    return values


_TABLE = _table()


def masked_crc32c(data: bytes | np.ndarray) -> int:
    """Return the checksum as it is stored in files: rotated and shifted by a constant, because a checksum of data that
    contains checksums is weak."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + MASK_DELTA) & ONES


def crc32c(data: bytes | np.ndarray) -> int:
    """Return the checksum of bytes, or of an array's memory."""
    array = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else np.ascontiguousarray(data)
    flat = array.reshape(-1).view(np.uint8)
    count = 1
    while count * PIECE_BYTES < len(flat):
        count *= 2
    length = -(-len(flat) // count)
    # Leading zeros do not change a register that is zero.
    bytes_PL = np.zeros((count, length), np.uint8)
    bytes_PL.reshape(-1)[count * length - len(flat) :] = flat
    register_P = np.zeros(count, np.uint32)
    for byte_P in np.ascontiguousarray(bytes_PL.T):
        register_P = _TABLE[(register_P ^ byte_P) & 0xFF] ^ register_P >> 8
    zeros = _zeros(length)
    while len(register_P) > 1:
        register_P = _shifted(register_P[0::2], zeros) ^ register_P[1::2]
        zeros = _shifted(zeros, zeros)
    # The register starts with ones; here they are shifted by as many zero bytes as the data has bytes.
    begun = _shifted(np.array([ONES], np.uint32), _zeros(len(flat)))
    return int(register_P[0] ^ begun[0]) ^ ONES


def _shifted(register_P: np.ndarray, zeros: np.ndarray) -> np.ndarray:
    """Return registers shifted by zero bytes; `zeros` has the result for each of the 32 bits."""
    found = np.zeros_like(register_P)
    for bit in range(32):
        found ^= np.where(register_P >> np.uint32(bit) & 1, zeros[bit], np.uint32(0)).astype(np.uint32)
    return found


def _zeros(length: int) -> np.ndarray:
    """Return the result for each bit of a register after `length` zero bytes."""
    bits = np.uint32(1) << np.arange(32, dtype=np.uint32)
    one = _TABLE[bits & 0xFF] ^ bits >> 8
    found = bits
    while length:
        if length & 1:
            found = _shifted(found, one)
        one, length = _shifted(one, one), length >> 1
    return found
