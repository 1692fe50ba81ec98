"""Compressed bodies that unpack to a valid answer of any size, written in pieces and without the size in memory."""

import struct
import zlib

_BLOCK = 1 << 20
_FILL = b"a"


def _gzip_header():
    return b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"


def _deflated(data, flush):
    compressor = zlib.compressobj(9, zlib.DEFLATED, -15)
    return compressor.compress(data) + compressor.flush(flush)


def gzip_pieces(before, fill, after):
    """One gzip member holding `before`, `fill` times the letter a, and `after`."""
    yield _gzip_header() + _deflated(before, zlib.Z_FULL_FLUSH)
    check, size = zlib.crc32(before), len(before) + fill + len(after)
    block = _FILL * _BLOCK
    # A full flush forgets all history, so one compressed block can be repeated as it is.
    packed = _deflated(block, zlib.Z_FULL_FLUSH)
    for _ in range(fill // _BLOCK):
        check = zlib.crc32(block, check)
        yield packed
    rest = _FILL * (fill % _BLOCK) + after
    check = zlib.crc32(rest, check)
    yield _deflated(rest, zlib.Z_FINISH) + struct.pack("<II", check, size & 0xFFFFFFFF)


def gzip_member_pieces(before, fill, after):
    """The same content as many gzip members, one after another."""
    block = _FILL * _BLOCK
    yield from gzip_pieces(before, 0, b"")
    member = b"".join(gzip_pieces(b"", _BLOCK, b""))
    for _ in range(fill // len(block)):
        yield member
    yield from gzip_pieces(b"", fill % len(block), after)


def gzip_nested_pieces(before, fill, after):
    """The gzip bomb packed by gzip once more: a few kilobytes on the wire (`Content-Encoding: gzip, gzip`)."""
    compressor = zlib.compressobj(9, zlib.DEFLATED, 31)
    for piece in gzip_pieces(before, fill, after):
        yield compressor.compress(piece)
    yield compressor.flush()


def deflate_pieces(before, fill, after):
    """The content in zlib framing, which is what HTTP calls deflate."""
    compressor = zlib.compressobj(9)
    block = _FILL * _BLOCK
    yield compressor.compress(before)
    for _ in range(fill // _BLOCK):
        yield compressor.compress(block)
    yield compressor.compress(_FILL * (fill % _BLOCK) + after) + compressor.flush()


def zstd_pieces(before, fill, after):
    """One zstd frame: two raw blocks around run-length blocks of 128 KiB in four bytes each."""
    longest = 128 << 10
    # Frame header: no checksum, no content size, a window of 128 KiB.
    yield b"\x28\xb5\x2f\xfd" + b"\x00" + bytes([7 << 3])

    def block(kind, size, last=False):
        return struct.pack("<I", (size << 3) | (kind << 1) | last)[:3]

    yield block(0, len(before)) + before
    for _ in range(fill // longest):
        yield block(1, longest) + _FILL
    if fill % longest:
        yield block(1, fill % longest) + _FILL
    yield block(0, len(after), last=True) + after


class _Bits:
    """Collects bits, the first being the lowest of the first byte, as brotli wants them."""

    def __init__(self):
        self.value = self.length = 0

    def put(self, value, count):
        self.value |= value << self.length
        self.length += count

    def stored(self, data):
        """A meta-block that holds the data as they are."""
        self.put(0, 1)  # not the last
        self._size(len(data))
        self.put(1, 1)  # stored: the data begin at the next whole byte
        self.length = -(-self.length // 8) * 8
        return self.whole_bytes() + data

    def copy(self, size):
        """A meta-block that copies `size` letters from four letters back, the distance that brotli starts with."""
        self.put(0, 1)
        self._size(size)
        self.put(0, 1)  # not stored
        self.put(0, 3)  # one block type each for literals, commands, distances
        self.put(0, 2 + 4)  # no postfix bits, no direct distances
        self.put(0, 2 + 1 + 1)  # literal context mode; one literal tree; one distance tree
        for symbol, width in ((_FILL[0], 8), (391, 10), (0, 6)):
            self.put(1, 2)  # a simple code
            self.put(0, 2)  # of one symbol, which then takes no bits
            self.put(symbol, width)
        self.put(size - _SHORTEST_COPY, 24)  # command 391: insert nothing, copy that many; distance code 0: as the last one
        return self.whole_bytes()

    def _size(self, size):
        nibbles = 4 if size <= 1 << 16 else 5 if size <= 1 << 20 else 6
        self.put(nibbles - 4, 2)
        self.put(size - 1, nibbles * 4)

    def whole_bytes(self):
        count = self.length // 8
        done = (self.value & ((1 << 8 * count) - 1)).to_bytes(count, "little")
        self.value >>= 8 * count
        self.length -= 8 * count
        return done

    def end(self):
        self.put(3, 2)  # the last meta-block, an empty one
        self.length += 7
        return self.whole_bytes()


_SHORTEST_COPY = 2118


def brotli_pieces(before, fill, after):
    """A brotli stream: stored meta-blocks around meta-blocks of one copy command, 16 MiB in some 20 bytes each."""
    bits, longest = _Bits(), 1 << 24
    bits.put(0b1111, 4)  # a window of 16 MiB
    # Copies look four letters back, so the first four stand there.
    start = min(fill, 4)
    yield bits.stored(before + _FILL * start)
    remaining = fill - start
    while remaining >= _SHORTEST_COPY:
        size = min(remaining, longest)
        yield bits.copy(size)
        remaining -= size
    yield bits.stored(_FILL * remaining + after)
    yield bits.end()


PIECES = {"gzip": gzip_pieces, "gzip_members": gzip_member_pieces, "gzip_nested": gzip_nested_pieces, "deflate": deflate_pieces,
          "br": brotli_pieces, "zstd": zstd_pieces}
LABELS = {"gzip_members": "gzip", "gzip_nested": "gzip, gzip"}
