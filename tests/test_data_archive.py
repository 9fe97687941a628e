"""Archives and pictures nobody vouches for: read when sound, refused by name when not."""

import gzip
import io
import struct
import tarfile
import zipfile
import zlib

import numpy as np
import pytest
from PIL import Image

from data_files import encode, noise, truncate, write_folder, write_tar, write_zip
from metavib.data.archive import Limits, decode_image, decode_rows, gather, members, read_gz, read_npz

FILES = {"top/a.txt": b"alpha", "top/deep/b.txt": b"beta" * 100, "c.bin": bytes(range(256))}


def _all(_name):
    return True


@pytest.mark.parametrize("kind", ["zip", "tar", "tgz", "folder"])
def test_every_container_gives_the_same_members(tmp_path, kind):
    path = {
        "zip": lambda: write_zip(tmp_path / "x.zip", FILES),
        "tar": lambda: write_tar(tmp_path / "x.tar", FILES, "w"),
        "tgz": lambda: write_tar(tmp_path / "x.tgz", FILES),
        "folder": lambda: write_folder(tmp_path / "x", FILES),
    }[kind]()
    assert dict(members(path, _all)) == FILES
    assert dict(members(path, lambda name: name.endswith("b.txt"))) == {"top/deep/b.txt": FILES["top/deep/b.txt"]}


@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "/etc/evil", "C:/evil", "a\\..\\evil"])
@pytest.mark.parametrize("write", [write_zip, write_tar])
def test_names_that_leave_the_archive_are_refused(tmp_path, name, write):
    path = write(tmp_path / ("x.zip" if write is write_zip else "x.tgz"), {"fine": b"1", name: b"2"})
    with pytest.raises(ValueError, match="points outside the archive"):
        list(members(path, _all))
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_in_a_tar_are_not_followed(tmp_path, kind):
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        info = tarfile.TarInfo("link")
        info.type, info.linkname = kind, "/etc/passwd"
        archive.addfile(info)
    with pytest.raises(ValueError, match="not followed"):
        list(members(tmp_path / "x.tar", _all))


def test_links_in_a_zip_are_not_followed(tmp_path):
    info = zipfile.ZipInfo("link")
    info.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr(info, "/etc/passwd")
    with pytest.raises(ValueError, match="link"):
        list(members(tmp_path / "x.zip", _all))


@pytest.mark.parametrize(
    ("limits", "match"),
    [(Limits(member=300), "top/deep/b.txt"), (Limits(members=2), "2 members"), (Limits(total=500), "500 bytes")],
)
@pytest.mark.parametrize("write", [write_zip, write_tar, write_folder])
def test_sizes_and_counts_are_capped(tmp_path, write, limits, match):
    path = write(tmp_path / {write_zip: "x.zip", write_tar: "x.tgz"}.get(write, "x"), FILES)
    with pytest.raises(ValueError, match=match):
        list(members(path, _all, limits=limits))


def test_a_bomb_is_refused_by_its_declared_size_before_it_is_unpacked(tmp_path):
    path = write_zip(tmp_path / "x.zip", {"bomb": bytes(2**21)})
    assert path.stat().st_size < 4000
    with pytest.raises(ValueError, match="'bomb' is 2097152 bytes"):
        list(members(path, _all, limits=Limits(member=2**20)))


def test_a_zip_that_lies_about_its_sizes_is_damaged_not_expanded(tmp_path):
    """The directory says 10 bytes, the data expand to 2 MiB: what comes out is an error."""
    path = write_zip(tmp_path / "x.zip", {"bomb": bytes(2**21)})
    raw = path.read_bytes().replace(struct.pack("<I", 2**21), struct.pack("<I", 10))
    path.write_bytes(raw)
    with pytest.raises(ValueError, match=r"x\.zip is damaged"):
        list(members(path, _all))


def test_a_tar_that_declares_a_huge_member_is_refused(tmp_path):
    info = tarfile.TarInfo("huge")
    info.size = 2**40
    (tmp_path / "x.tar").write_bytes(info.tobuf() + bytes(2048))
    with pytest.raises(ValueError, match="'huge' is 1099511627776 bytes"):
        list(members(tmp_path / "x.tar", _all))


@pytest.mark.parametrize("write", [write_zip, write_tar])
@pytest.mark.parametrize("keep", [0.0, 0.1, 0.5, 0.95])
def test_a_truncated_archive_says_so(tmp_path, write, keep):
    path = write(
        tmp_path / ("x.zip" if write is write_zip else "x.tgz"), {f"{i}": noise(i, 5000).tobytes() for i in range(4)}
    )
    truncate(path, keep)
    with pytest.raises(ValueError, match=r"x\.(zip|tgz) is damaged or incomplete .*again"):
        list(members(path, _all))


def test_flipped_bytes_in_a_zip_are_noticed(tmp_path):
    path = write_zip(tmp_path / "x.zip", {"a": noise(0, 5000).tobytes()})
    raw = bytearray(path.read_bytes())
    raw[2000] ^= 0xFF
    path.write_bytes(raw)
    with pytest.raises(ValueError, match="damaged"):
        list(members(path, _all))


def test_an_encrypted_member_and_an_unknown_container_are_refused(tmp_path):
    path = write_zip(tmp_path / "x.zip", {"a": b"1"})
    raw = bytearray(path.read_bytes())
    raw[raw.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(raw)
    with pytest.raises(ValueError, match="encrypted"):
        list(members(path, _all))
    with pytest.raises(ValueError, match="expected a folder, a .zip"):
        members(tmp_path / "x.rar", _all)


def test_gather_puts_members_into_their_rows(tmp_path):
    path = write_zip(tmp_path / "x.zip", {"b": b"\2", "a": b"\1", "other": b"\3"})

    def decode(_name, data):
        return np.frombuffer(data, np.uint8)

    assert gather(path, {"a": 0, "b": 1}, decode).tolist() == [[1], [2]]
    with pytest.raises(ValueError, match="1 of 3 files missing, the first 'z'"):
        gather(path, {"a": 0, "b": 1, "z": 2}, decode)


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "BMP"])
def test_lossless_pictures_decode_to_their_pixels(kind):
    pixels = noise(0, 6, 5, 3)
    options = {"lossless": True} if kind == "WEBP" else {}
    out = decode_image(encode(pixels, kind, **options), name="x", channels=3)
    assert np.array_equal(out, pixels.transpose(2, 0, 1))


def test_grey_resized_and_central_square():
    pixels = np.zeros((10, 30), np.uint8)
    pixels[:, 10:20] = 200
    data = encode(pixels)
    assert decode_image(data, name="x", channels=1).shape == (1, 10, 30)
    assert decode_image(data, name="x", channels=3, size=7).shape == (3, 7, 7)
    assert (decode_image(data, name="x", channels=1, size=5, keep_aspect=True) == 200).all()


def test_transparency_is_laid_on_white():
    rgba = np.zeros((4, 4, 4), np.uint8)
    rgba[:2, :, 3] = 255
    out = decode_image(encode(rgba), name="x", channels=1)[0]
    assert (out[:2] == 0).all() and (out[2:] == 255).all()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not an image at all",
        encode(noise(0, 40, 40, 3))[:400],
        encode(noise(0, 40, 40, 3), "JPEG")[:600],
        encode(noise(0, 8, 8, 3), "GIF"),
        encode(noise(0, 8, 8, 3), "TIFF"),
        encode(np.zeros((4, 4), np.uint16)),
    ],
    ids=["empty", "text", "cut png", "cut jpeg", "gif", "tiff", "16 bit"],
)
def test_what_is_no_sound_picture_is_refused_by_name(data):
    with pytest.raises(ValueError, match=r"folder/x\.png cannot be read as a PNG.*replace or remove"):
        decode_image(data, name="folder/x.png", channels=3)


def test_a_picture_that_declares_too_many_pixels_is_refused_before_decoding():
    """A PNG header of 60,000 x 60,000 pixels, and one a little above a given cap."""
    raw = bytearray(encode(np.zeros((4, 4), np.uint8)))
    raw[16:24] = struct.pack(">II", 60_000, 60_000)
    raw[29:33] = struct.pack(">I", zlib.crc32(raw[12:29]))
    with pytest.raises(ValueError, match="cannot be read"):
        decode_image(bytes(raw), name="x", channels=1)
    with pytest.raises(ValueError, match="more than the 15 allowed"):
        decode_image(encode(np.zeros((4, 4), np.uint8)), name="x", channels=1, max_pixels=15)


def test_gz_is_capped_and_checked(tmp_path):
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(noise(0, 1000).tobytes()))
    assert read_gz(path) == noise(0, 1000).tobytes()
    assert read_gz(path, prefix=10) == noise(0, 1000).tobytes()[:10]
    with pytest.raises(ValueError, match="more than the 999 bytes"):
        read_gz(path, limit=999)
    truncate(path)
    with pytest.raises(ValueError, match=r"x\.gz is damaged"):
        read_gz(path)
    path.write_bytes(b"no gzip")
    with pytest.raises(ValueError, match=r"x\.gz is damaged"):
        read_gz(path)


def test_npz_arrays_are_those_numpy_saved(tmp_path):
    arrays = {"a": noise(0, 3, 4), "b": np.array(["x", "yy"]), "c": np.asfortranarray(np.arange(6.0).reshape(2, 3))}
    np.savez_compressed(tmp_path / "x.npz", **arrays)
    for got, expected in zip(read_npz(tmp_path / "x.npz", "a", "b", "c"), arrays.values(), strict=True):
        assert got.dtype == expected.dtype and np.array_equal(got, expected)


def test_npz_of_objects_is_never_unpickled(tmp_path):
    np.savez(tmp_path / "x.npz", a=np.array([{"any": "object"}], dtype=object))
    with pytest.raises(ValueError, match="not read"):
        read_npz(tmp_path / "x.npz", "a")


def test_npz_that_claims_more_than_it_has_is_refused_before_allocation(tmp_path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (2**50,)})
    write_zip(tmp_path / "x.npz", {"a.npy": header.getvalue() + b"123"})
    with pytest.raises(ValueError, match="claims 1125899906842624 bytes"):
        read_npz(tmp_path / "x.npz", "a")


def test_npz_errors_name_the_file(tmp_path):
    path = tmp_path / "x.npz"
    np.savez(path, a=noise(0, 5000))
    with pytest.raises(ValueError, match=r"x\.npz .*no array named b, only a"):
        read_npz(path, "a", "b")
    with pytest.raises(ValueError, match="more than the 10 bytes"):
        read_npz(path, "a", max_bytes=10)
    truncate(path)
    with pytest.raises(ValueError, match=r"x\.npz is damaged"):
        read_npz(path, "a")
    with pytest.raises(FileNotFoundError):
        read_npz(tmp_path / "none.npz", "a")


@pytest.mark.parametrize("offsets", [[0], [0, 3, 2], [-1, 3], [0, 6]])
def test_offsets_that_do_not_fit_are_refused(tmp_path, offsets):
    with pytest.raises(ValueError, match="offsets do not fit"):
        decode_rows(tmp_path, np.zeros(5, np.uint8), np.array(offsets), lambda name, data: np.zeros(1))


def test_pillow_is_asked_for_no_other_formats():
    """Pillow's list of decoders is long; only four of them ever see our bytes."""
    from metavib.data.archive import FORMATS

    Image.init()
    assert set(FORMATS) == {"PNG", "JPEG", "WEBP", "BMP"} < set(Image.OPEN)
