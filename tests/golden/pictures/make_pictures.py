"""Writes small pictures of every mode that people send, and what PIL makes of them, for tests/image/picture_modes_test.cc.

    pip install pillow==13.0.0 numpy && python make_pictures.py

Beside each FILE: FILE.rgb.png, the pixels after transformers' load_image (PIL decode, exif_transpose, convert("RGB")), and, where
it differs, FILE.white.png, the same after a reference processor's convert_to_rgb (a single transparent colour painted white).
pictures.json lists the files. PNG and BMP variants that Pillow cannot write are encoded here by hand.
"""
import io
import json
import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

HERE = Path(__file__).parent
W, H = 29, 21
rng = np.random.default_rng(20260711)


def drawing(w=W, h=H):
    """Smooth colour with an edge and some noise, so that chroma, rounding and clipping all show."""
    y, x = np.mgrid[0:h, 0:w]
    a = np.stack([255 * x / max(w - 1, 1), 255 * y / max(h - 1, 1), 127 + 120 * np.sin((x * 2 + y * 3) / 5)], -1)
    a[h // 3 : h // 2, w // 4 : w // 2] = [250, 10, 30]
    return np.clip(a + rng.normal(0, 12, a.shape), 0, 255).astype(np.uint8)


RGB = drawing()
GREY = np.asarray(Image.fromarray(RGB).convert("L"))
ALPHA = rng.integers(0, 256, (H, W), dtype=np.uint8)
ALPHA[:5] = 0
files = {}


def save(name, im, **kw):
    b = io.BytesIO()
    im.save(b, {"jpg": "JPEG"}.get(name.rsplit(".")[-1], name.rsplit(".")[-1].upper()), **kw)
    files[name] = b.getvalue()


# ---- PNG by hand ----------------------------------------------------------------------------------------------------
def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def pack_rows(samples, depth):
    """[h, w, channels] sample values to unfiltered PNG rows."""
    out = b""
    for row in samples:
        flat = row.reshape(-1)
        if depth == 16:
            out += b"\0" + flat.astype(">u2").tobytes()
        else:
            bits = ((flat[:, None] >> np.arange(depth - 1, -1, -1)) & 1).astype(np.uint8).reshape(-1)
            out += b"\0" + np.packbits(bits).tobytes()
    return out


def png(samples, depth, colour, before=b"", after=b"", interlaced=False):
    samples = samples if samples.ndim == 3 else samples[..., None]
    h, w = samples.shape[:2]
    raw = b""
    if interlaced:  # Adam7
        for y0, x0, dy, dx in [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]:
            part = samples[y0::dy, x0::dx]
            if part.size:
                raw += pack_rows(part, depth)
    else:
        raw = pack_rows(samples, depth)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", w, h, depth, colour, 0, 0, int(interlaced))) + before
            + chunk(b"IDAT", zlib.compress(raw, 9)) + after + chunk(b"IEND", b""))


def trns(*values):
    return chunk(b"tRNS", struct.pack(f">{len(values)}H", *values))


WIDE_GREY = (GREY.astype(np.uint16) * 257) ^ rng.integers(0, 256, GREY.shape).astype(np.uint16)
WIDE_GREY[:6] //= 200  # PIL clips 16-bit grey at 255: keep some below
WIDE_GREY[6, :4] = [255, 256, 0, 65535]
WIDE_RGB = (RGB.astype(np.uint16) << 8) | rng.integers(0, 256, RGB.shape).astype(np.uint16)
WIDE_ALPHA = rng.integers(0, 65536, (H, W)).astype(np.uint16)
for depth in (1, 2, 4):
    q = GREY >> (8 - depth)
    files[f"grey{depth}.png"] = png(q, depth, 0)
    files[f"grey{depth}_interlaced.png"] = png(q, depth, 0, interlaced=True)
    files[f"grey{depth}_trns.png"] = png(q, depth, 0, trns(0 if depth == 1 else 1))
files["grey1_trns1.png"] = png(GREY >> 7, 1, 0, trns(1))
files["grey2_trns_scaled.png"] = png(GREY >> 6, 2, 0, trns(85))
files["grey8_trns.png"] = png(GREY, 8, 0, trns(int(GREY[3, 3])))
files["grey8_interlaced.png"] = png(GREY, 8, 0, interlaced=True)
files["grey16.png"] = png(WIDE_GREY, 16, 0)
files["grey16_interlaced.png"] = png(WIDE_GREY, 16, 0, interlaced=True)
files["grey16_trns.png"] = png(WIDE_GREY, 16, 0, trns(0x4200))
files["grey_alpha8.png"] = png(np.dstack([GREY, ALPHA]), 8, 4)
files["grey_alpha16.png"] = png(np.dstack([WIDE_GREY, WIDE_ALPHA]), 16, 4)
files["rgb8_interlaced.png"] = png(RGB, 8, 2, interlaced=True)
files["rgb8_trns.png"] = png(RGB, 8, 2, trns(*[int(v) for v in RGB[4, 4]]))
files["rgb8_trns_high.png"] = png(RGB, 8, 2, trns(*[256 + int(v) for v in RGB[4, 4]]))
files["rgb16.png"] = png(WIDE_RGB, 16, 2)
files["rgb16_trns.png"] = png(WIDE_RGB, 16, 2, trns(*[int(v) for v in WIDE_RGB[4, 4]]))
files["rgb16_trns_low.png"] = png(WIDE_RGB, 16, 2, trns(*[int(v) >> 8 for v in WIDE_RGB[4, 4]]))
files["rgba8.png"] = png(np.dstack([RGB, ALPHA]), 8, 6)
files["rgba8_interlaced.png"] = png(np.dstack([RGB, ALPHA]), 8, 6, interlaced=True)
files["rgba16.png"] = png(np.dstack([WIDE_RGB, WIDE_ALPHA]), 16, 6)
files["rgba16_interlaced.png"] = png(np.dstack([WIDE_RGB, WIDE_ALPHA]), 16, 6, interlaced=True)
for depth in (1, 2, 4, 8):
    n = 1 << depth
    p = Image.fromarray(RGB).quantize(min(n, 60))
    index = (np.asarray(p).astype(int) % n).astype(np.uint8)
    plte = chunk(b"PLTE", bytes(p.getpalette()[: 3 * min(n, 60)]))
    files[f"palette{depth}.png"] = png(index, depth, 3, plte)
    files[f"palette{depth}_interlaced.png"] = png(index, depth, 3, plte, interlaced=True)
    files[f"palette{depth}_trns.png"] = png(index, depth, 3, plte + chunk(b"tRNS", b"\xff\x00"))
    files[f"palette{depth}_trns_table.png"] = png(index, depth, 3, plte + chunk(b"tRNS", b"\x80\x00"))
files["palette8_two_clear.png"] = png(index, 8, 3, plte + chunk(b"tRNS", b"\x00\xff\x00"))
files["palette8_opaque_trns.png"] = png(index, 8, 3, plte + chunk(b"tRNS", b"\xff\xff"))
files["palette8_same_colour_trns.png"] = png(index % 4, 8, 3, chunk(b"PLTE", bytes([9, 8, 7, 200, 100, 50, 9, 8, 7, 1, 2, 3])) + chunk(b"tRNS", b"\x00"))
files["palette8_index_past_end.png"] = png(index % 4, 8, 3, chunk(b"PLTE", bytes([9, 8, 7, 200, 100, 50])))
files["palette8_trns_past_end_of_picture.png"] = png(index % 2, 8, 3, chunk(b"PLTE", bytes([9, 8, 7, 200, 100, 50, 3, 3, 3])) + chunk(b"tRNS", b"\xff\xff\x00"))
files["gamma.png"] = png(RGB, 8, 2, chunk(b"gAMA", struct.pack(">I", 100000)))
files["gamma_grey4.png"] = png(GREY >> 4, 4, 0, chunk(b"gAMA", struct.pack(">I", 22727)))
files["srgb_chunk.png"] = png(RGB, 8, 2, chunk(b"sRGB", b"\1") + chunk(b"pHYs", struct.pack(">IIB", 2835, 2835, 1)))
files["text_and_time.png"] = png(RGB, 8, 2, chunk(b"tEXt", b"Title\0hello") + chunk(b"bKGD", struct.pack(">3H", 1, 2, 3)), chunk(b"tIME", bytes([7, 234, 1, 2, 3, 4, 5])))
files["no_iend.png"] = png(RGB, 8, 2)[:-12]
files["trailing_bytes.png"] = png(RGB, 8, 2) + b"more" * 9
save("animated.png", Image.fromarray(RGB), save_all=True, append_images=[Image.fromarray(RGB[::-1].copy())], duration=50)


# ---- orientation in every place ---------------------------------------------------------------------------------------
def exif_block(value, endian="<", kind=3, first_offset=8):
    e = endian
    entries = struct.pack(e + "HHI", 0x0100, 4, 1) + struct.pack(e + "I", 99)
    data = {1: struct.pack(e + "B3x", value), 3: struct.pack(e + "HH", value, 0), 4: struct.pack(e + "I", value)}[kind]
    entries += struct.pack(e + "HHI", 0x0112, kind, 1) + data
    return (b"II*\0" if e == "<" else b"MM\0*") + struct.pack(e + "I", first_offset) + b"\0" * (first_offset - 8) + struct.pack(e + "H", 2) + entries + b"\0\0\0\0"


XMP = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
XMP_ELEMENT = b"<x:xmpmeta><tiff:Orientation>8</tiff:Orientation></x:xmpmeta>"
for o in range(1, 9):
    save(f"orientation{o}.jpg", Image.fromarray(RGB), quality=90, exif=b"Exif\0\0" + exif_block(o))
for o in (0, 9, 255):
    save(f"orientation{o}.jpg", Image.fromarray(RGB), quality=90, exif=b"Exif\0\0" + exif_block(o))
save("orientation6_big_endian.jpg", Image.fromarray(RGB), quality=90, exif=b"Exif\0\0" + exif_block(6, ">"))
save("orientation6_long.jpg", Image.fromarray(RGB), quality=90, exif=b"Exif\0\0" + exif_block(6, ">", 4))
save("orientation6_byte.jpg", Image.fromarray(RGB), quality=90, exif=b"Exif\0\0" + exif_block(6, "<", 1))
save("orientation6_far_directory.jpg", Image.fromarray(RGB), quality=90, exif=b"Exif\0\0" + exif_block(6, "<", 3, 40))
save("orientation6_cut_short.jpg", Image.fromarray(RGB), quality=90, exif=b"Exif\0\0" + exif_block(6)[:20])
save("orientation6_xmp.jpg", Image.fromarray(RGB), quality=90, xmp=XMP)
save("orientation8_xmp_element.jpg", Image.fromarray(RGB), quality=90, xmp=XMP_ELEMENT)
save("orientation3_exif_before_xmp.jpg", Image.fromarray(RGB), quality=90, exif=b"Exif\0\0" + exif_block(3), xmp=XMP)
files["orientation5_exif.png"] = png(RGB, 8, 2, chunk(b"eXIf", exif_block(5, ">")))
files["orientation7_exif_after.png"] = png(RGB, 8, 2, b"", chunk(b"eXIf", exif_block(7)))
files["orientation6_xmp.png"] = png(RGB, 8, 2, chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + XMP))
profile = b"\nexif\n%8d\n" % len(b"Exif\0\0" + exif_block(8)) + (b"Exif\0\0" + exif_block(8)).hex().encode() + b"\n"
files["orientation8_raw_profile.png"] = png(RGB, 8, 2, chunk(b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(profile)))
files["orientation6_palette_trns.png"] = png(index, 8, 3, plte + chunk(b"tRNS", b"\xff\x00") + chunk(b"eXIf", exif_block(6)))
save("orientation6.webp", Image.fromarray(RGB), quality=80, exif=exif_block(6))
save("orientation4_xmp.webp", Image.fromarray(RGB), lossless=True, xmp=XMP.replace(b'"6"', b'"4"'))

# ---- JPEG -----------------------------------------------------------------------------------------------------------
J = Image.fromarray(RGB)
save("grey.jpg", Image.fromarray(GREY), quality=85)
for name, sampling in {"444": "4:4:4", "422": "4:2:2", "420": "4:2:0", "411": "4:1:1"}.items():
    save(f"rgb{name}.jpg", J, quality=75, subsampling=sampling)
    save(f"rgb{name}_progressive.jpg", J, quality=75, subsampling=sampling, progressive=True)


def swap_sampling(data, hv):
    """Rewrites the luma sampling factors of a 4:4:4 grey-chroma file: a different, still valid, reading of the same bits only for
    files whose MCU count does not change, so it is used on one-MCU pictures."""
    i = data.index(b"\xff\xc0")
    return data[: i + 11] + bytes([hv]) + data[i + 12 :]


# 4:4:0: Pillow cannot write it; a transposed 4:2:2 file has the same MCU layout for an 8x8-block picture
small = Image.fromarray(drawing(16, 8))
b = io.BytesIO()
small.save(b, "JPEG", quality=90, subsampling="4:2:2")
d = bytearray(swap_sampling(b.getvalue(), 0x12))
i = d.index(b"\xff\xc0")
d[i + 5 : i + 9] = struct.pack(">HH", 16, 8)
files["rgb440.jpg"] = bytes(d)
save("rgb_stored.jpg", J, quality=85, keep_rgb=True)
save("low_quality.jpg", J, quality=5)
save("optimised.jpg", J, quality=85, optimize=True)
save("restarts.jpg", J, quality=85, restart_marker_blocks=2)
save("one_pixel.jpg", Image.fromarray(drawing(1, 1)), quality=90)
save("one_row.jpg", Image.fromarray(drawing(33, 1)), quality=90)
save("one_column.jpg", Image.fromarray(drawing(1, 35)), quality=90)
CMYK = Image.frombytes("CMYK", (W, H), np.dstack([RGB, 255 - GREY // 2]).tobytes())
save("cmyk.jpg", CMYK, quality=90)
save("cmyk_progressive.jpg", CMYK, quality=90, progressive=True)
adobe = files["cmyk.jpg"].index(b"Adobe")
files["ycck.jpg"] = files["cmyk.jpg"][: adobe + 11] + b"\2" + files["cmyk.jpg"][adobe + 12 :]
segment = files["cmyk.jpg"].index(b"\xff\xee")
files["cmyk_no_marker.jpg"] = files["cmyk.jpg"][:segment] + files["cmyk.jpg"][segment + 16 :]
save("icc.jpg", J, quality=85, icc_profile=bytes(200))
files["trailing_bytes.jpg"] = files["rgb420.jpg"] + b"\0\1\2" * 50
b = io.BytesIO()
J.save(b, "MPO", save_all=True, append_images=[Image.fromarray(RGB[::-1].copy())], quality=85)
files["two_pictures.jpg"] = b.getvalue()

# ---- WebP -----------------------------------------------------------------------------------------------------------
big = Image.fromarray(drawing(64, 64))
big_alpha = big.copy()
big_alpha.putalpha(Image.fromarray(rng.integers(0, 256, (64, 64), dtype=np.uint8)))
save("lossy.webp", big, quality=75)
save("lossless.webp", big, lossless=True)
save("lossy_alpha.webp", big_alpha, quality=75)
save("lossless_alpha.webp", big_alpha, lossless=True)
save("lossless_alpha_exact.webp", big_alpha, lossless=True, exact=True)
save("palette.webp", big.quantize(6).convert("RGB"), lossless=True)
save("odd_size.webp", J, quality=60)
save("animated.webp", big, save_all=True, append_images=[big.rotate(90), big.rotate(180)], duration=100, quality=70)
save("animated_alpha.webp", big_alpha, save_all=True, append_images=[big_alpha.rotate(90)], duration=100, lossless=True)
# an animation whose first frame covers only a part of the canvas (both sides even, offset 8, 12)
part = io.BytesIO()
big.crop((0, 0, 30, 22)).save(part, "WEBP", quality=80)
bits = part.getvalue()[12:]
frame = struct.pack("<I", 8 // 2)[:3] + struct.pack("<I", 12 // 2)[:3] + struct.pack("<I", 29)[:3] + struct.pack("<I", 21)[:3] + struct.pack("<I", 50)[:3] + b"\0"
anmf = b"ANMF" + struct.pack("<I", len(frame) + len(bits)) + frame + bits
body = b"WEBP" + b"VP8X" + struct.pack("<I", 10) + b"\x02\0\0\0" + struct.pack("<I", 63)[:3] + struct.pack("<I", 63)[:3]
body += b"ANIM" + struct.pack("<I", 6) + bytes([10, 20, 30, 255]) + b"\0\0" + anmf + anmf
files["animated_part.webp"] = b"RIFF" + struct.pack("<I", len(body)) + body

# ---- BMP ------------------------------------------------------------------------------------------------------------
save("rgb24.bmp", J)
save("grey8.bmp", Image.fromarray(GREY))
save("palette8.bmp", J.quantize(40))
save("bits1.bmp", Image.fromarray(GREY).convert("1"))
save("rgba32.bmp", Image.fromarray(np.dstack([RGB, ALPHA]), "RGBA"))


def bmp(w, h, bits, rows, compression=0, palette=b"", masks=b"", colours=0, header=40):
    size = header + len(masks) * (header == 40)
    if header == 12:
        info = struct.pack("<IHHHH", 12, w, h, 1, bits)
    else:
        info = struct.pack("<IiiHHIIiiII", header, w, h, 1, bits, compression, len(rows), 2835, 2835, colours, 0) + masks
        info += b"\0" * (header - len(info)) if header > 40 else b""
    offset = 14 + len(info) + len(palette)
    return b"BM" + struct.pack("<IHHI", offset + len(rows), 0, 0, offset) + info + palette + rows


def padded(rows):
    return b"".join(r + b"\0" * (-len(r) % 4) for r in rows)


def nibbles(row):
    row = list(row) + [0] * (len(row) % 2)
    return bytes(row[i] << 4 | row[i + 1] for i in range(0, len(row), 2))


bgr = RGB[..., ::-1]
pal16 = J.quantize(16)
index16 = np.asarray(pal16)
quad16 = b"".join(bytes([b_, g, r, 0]) for r, g, b_ in np.array(pal16.getpalette()[:48]).reshape(16, 3).tolist())
tri16 = b"".join(bytes([b_, g, r]) for r, g, b_ in np.array(pal16.getpalette()[:48]).reshape(16, 3).tolist())
files["palette4.bmp"] = bmp(W, H, 4, padded(nibbles(r) for r in index16[::-1]), palette=quad16)
files["palette4_os2.bmp"] = bmp(W, H, 4, padded(nibbles(r) for r in index16[::-1]), palette=tri16, header=12)
files["palette4_short.bmp"] = bmp(W, H, 4, padded(nibbles(r) for r in index16[::-1]), palette=quad16[:20], colours=5)
files["top_down24.bmp"] = bmp(W, -H, 24, padded(r.tobytes() for r in bgr))
x555 = (RGB[..., 0] >> 3).astype("<u2") << 10 | (RGB[..., 1] >> 3).astype("<u2") << 5 | RGB[..., 2] >> 3
x565 = (RGB[..., 0] >> 3).astype("<u2") << 11 | (RGB[..., 1] >> 2).astype("<u2") << 5 | RGB[..., 2] >> 3
files["rgb555.bmp"] = bmp(W, H, 16, padded(r.astype("<u2").tobytes() for r in x555[::-1]))
files["rgb565.bmp"] = bmp(W, H, 16, padded(r.astype("<u2").tobytes() for r in x565[::-1]), 3, masks=struct.pack("<III", 0xF800, 0x7E0, 0x1F))
files["rgb555_masks.bmp"] = bmp(W, H, 16, padded(r.astype("<u2").tobytes() for r in x555[::-1]), 3, masks=struct.pack("<III", 0x7C00, 0x3E0, 0x1F))
bgrx = np.dstack([bgr, ALPHA])
files["rgb32.bmp"] = bmp(W, H, 32, bgrx[::-1].tobytes())
files["rgb32_masks.bmp"] = bmp(W, H, 32, np.dstack([ALPHA, bgr])[::-1].tobytes(), 3, masks=struct.pack("<III", 0xFF000000, 0xFF0000, 0xFF00))
files["rgba32_v5.bmp"] = bmp(W, H, 32, bgrx[::-1].tobytes(), 3, masks=struct.pack("<IIII", 0xFF0000, 0xFF00, 0xFF, 0xFF000000), header=124)
files["rgba32_v4_rgba.bmp"] = bmp(W, H, 32, np.dstack([RGB, ALPHA])[::-1].tobytes(), 3, masks=struct.pack("<IIII", 0xFF, 0xFF00, 0xFF0000, 0xFF000000), header=108)
quad256 = b"".join(bytes([b_, g, r, 0]) for r, g, b_ in np.array(J.quantize(256).getpalette()).reshape(-1, 3).tolist())
index256 = np.asarray(J.quantize(256))


def rle(rows, four):
    out = b""
    for n, row in enumerate(rows):
        row, i = list(map(int, row)), 0
        while i < len(row):
            run = 1
            while i + run < len(row) and row[i + run] == row[i] and run < 255:
                run += 1
            if run >= 2 or i + 3 > len(row):
                out += bytes([run, row[i] * 17 if four else row[i]])
                i += run
            else:
                part = row[i : i + 7]
                data = nibbles(part) if four else bytes(part)
                if len(part) < 3:
                    for v in part:
                        out += bytes([1, v * 17 if four else v])
                else:
                    out += bytes([0, len(part)]) + data + b"\0" * (len(data) % 2)
                i += len(part)
        out += b"\0\0" if n < len(rows) - 1 else b"\0\1"
    return out


flat16 = index16.copy()
flat16[5:9, 3:20] = 7
files["rle4.bmp"] = bmp(W, H, 4, rle(flat16[::-1], True), 2, palette=quad16)
flat = index256.copy()
flat[5:9, 3:20] = 7
files["rle8.bmp"] = bmp(W, H, 8, rle(flat[::-1], False), 1, palette=quad256, colours=len(quad256) // 4)
files["rle8_delta.bmp"] = bmp(8, 4, 8, bytes([3, 1, 0, 2, 2, 1, 3, 2, 0, 0, 8, 3, 0, 0, 2, 5, 0, 5, 1, 2, 3, 4, 5, 0, 1, 6, 0, 1]), 1, palette=quad256, colours=len(quad256) // 4)

# ---- GIF ------------------------------------------------------------------------------------------------------------
P = J.quantize(30)
save("plain.gif", P)
save("transparent.gif", P, transparency=3)
save("grey.gif", Image.fromarray(GREY))
save("animated.gif", P, save_all=True, append_images=[J.rotate(180).quantize(30)], duration=80)
save("not_interlaced.gif", P, interlace=0)
save("interlaced.gif", P, interlace=1)


def move_frame(data, screen, left, top):
    """The same frame elsewhere on another logical screen."""
    d = bytearray(data)
    d[6:10] = struct.pack("<HH", *screen)
    at = 13 + (3 << ((d[10] & 7) + 1) if d[10] & 128 else 0)
    while d[at] == 0x21:
        at += 2
        while d[at]:
            at += d[at] + 1
        at += 1
    d[at + 1 : at + 5] = struct.pack("<HH", left, top)
    return bytes(d)


files["part_of_screen.gif"] = move_frame(files["plain.gif"], (40, 33), 5, 6)
files["part_of_screen_transparent.gif"] = move_frame(files["transparent.gif"], (40, 33), 5, 6)
files["part_of_screen_grey.gif"] = move_frame(files["grey.gif"], (40, 33), 5, 6)
files["larger_than_screen.gif"] = move_frame(files["plain.gif"], (10, 10), 2, 3)
gif = files["plain.gif"]
table = 3 << ((gif[10] & 7) + 1)
at = 13 + table
body = gif[at:]
where = body.index(b",")
local = bytearray(body[where : where + 10])
local[9] |= 0x80 | (gif[10] & 7)
head = bytearray(gif[:13])
head[10] &= 0x7F
files["local_palette.gif"] = bytes(head) + body[:where] + bytes(local) + gif[13:at] + body[where + 10 :]
files["no_palette.gif"] = bytes(head) + body
files["gif87a.gif"] = b"GIF87a" + gif[6:]


def convert_to_rgb(im):
    """transformers.image_transforms.convert_to_rgb for a PIL picture."""
    if "A" in im.getbands() or im.info.get("transparency") is not None:
        im = im.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", im.size, (255, 255, 255, 255)), im).convert("RGB")
    return im.convert("RGB")


def main():
    for old in HERE.glob("*.*"):
        if old.suffix != ".py":
            old.unlink()
    index = []
    for name, data in sorted(files.items()):
        (HERE / name).write_bytes(data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            im = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
            white = convert_to_rgb(im)
        entry = {"file": name, "width": im.width, "height": im.height}
        plain = Image.fromarray(np.asarray(im))
        plain.save(HERE / (name + ".rgb.png"), optimize=True)
        if np.asarray(white).tobytes() != np.asarray(im).tobytes():
            white.save(HERE / (name + ".white.png"), optimize=True)
            entry["white"] = True
        index.append(entry)
    (HERE / "pictures.json").write_text("[\n" + ",\n".join(json.dumps(e) for e in index) + "\n]\n")


if __name__ == "__main__":
    main()
