"""Each reader on small files in the published format and packed, and on damaged ones."""

import csv
import gzip
import io

import numpy as np
import pytest
import torch
from PIL import Image

from data_files import (
    REAL,
    cub_files,
    cub_names,
    cub_packed,
    emnist_packed,
    encode,
    mini_imagenet_packed,
    needs_real,
    noise,
    omniglot_files,
    omniglot_packed,
    omniglot_rows,
    pack_bits,
    strokes,
    truncate,
    write_folder,
    write_idx,
    write_tar,
    write_zip,
)
from metavib.data.characters import BACKGROUND, alphabet, character, emnist, omniglot
from metavib.data.characters import EMNIST_CLASSES as NAMES
from metavib.data.folder import folder, folder_splits, split_classes
from metavib.data.photographs import cub, mini_imagenet
from metavib.data.photographs import cub_part as part_of


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("METAVIB_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def root(tmp_path):
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def _same(a, b):
    return torch.equal(a.images, b.images) and torch.equal(a.labels, b.labels) and a.names == b.names


# --- characters -------------------------------------------------------------------------------------------------------


def test_crop_is_the_centre_of_a_resize_to_32_of_black_on_white():
    ink = 255 * strokes(0)
    paper = Image.fromarray(255 - ink).resize((32, 32), Image.Resampling.BILINEAR).crop((2, 2, 30, 30))
    assert np.array_equal(character(ink, crop=True), np.asarray(paper))


def test_without_crop_a_28_pixel_drawing_is_only_inverted():
    ink = noise(0, 28, 28)
    assert np.array_equal(character(ink, crop=False), 255 - ink)


# --- Omniglot ---------------------------------------------------------------------------------------------------------

ROWS = omniglot_rows({"Greek": 3, "Latin": 2}, {"Angelic": 2})


def _write_omniglot(root, form):
    if form == "zip":
        for part, name in enumerate(("images_background", "images_evaluation")):
            junk = {f"__MACOSX/{name}/Greek/character01/._0001_01.png": b"junk", f"{name}/.DS_Store": b"junk"}
            write_zip(root / f"{name}.zip", omniglot_files(ROWS, part) | junk)
    elif form == "folder":
        for part in range(2):
            write_folder(root / "omniglot", omniglot_files(ROWS, part))
    elif form == "packed-105":
        omniglot_packed(root / "omniglot_105.npz", ROWS, **pack_bits([strokes(i) for i in range(len(ROWS))]))
    else:
        ink = [Image.fromarray(255 * strokes(i)).resize((28, 28), Image.Resampling.LANCZOS) for i in range(len(ROWS))]
        omniglot_packed(root / "omniglot_28.npz", ROWS, images=np.stack([np.asarray(i) for i in ink]))


FORMS = ("zip", "folder", "packed-105", "packed-28")


@pytest.mark.parametrize("form", FORMS)
def test_omniglot_is_black_on_white_with_classes_in_order(root, form):
    _write_omniglot(root, form)
    data = omniglot(root=root)
    assert data.images.shape == (14, 1, 28, 28) and data.counts.tolist() == [2] * 7
    assert data.names[:4] == ("Greek/character01", "Greek/character02", "Greek/character03", "Latin/character01")
    assert data.names[-1] == "Angelic/character02"
    for i, picture in enumerate(data.images[:, 0].numpy()):
        assert np.array_equal(picture, character(255 * strokes(i), crop=False))
    assert data.images.float().mean() > 200


@pytest.mark.parametrize("form", FORMS[:3])
def test_omniglot_cropped_comes_from_the_full_drawings(root, form):
    _write_omniglot(root, form)
    _write_omniglot(root, "packed-28")  # present too, and not preferred
    data = omniglot(root=root, crop=True)
    for i, picture in enumerate(data.images[:, 0].numpy()):
        assert np.array_equal(picture, character(255 * strokes(i), crop=True))
    assert not torch.equal(data.images, omniglot(root=root).images)


def test_omniglot_cropped_from_28_pixels_as_a_last_resort(root):
    _write_omniglot(root, "packed-28")
    assert omniglot(root=root, crop=True).images.shape == (14, 1, 28, 28)


def test_omniglot_damaged(root):
    _write_omniglot(root, "zip")
    truncate(root / "images_evaluation.zip")
    with pytest.raises(ValueError, match=r"images_evaluation\.zip is damaged"):
        omniglot(root=root)
    write_zip(root / "images_evaluation.zip", {"images_evaluation/Angelic/character01/0001_01.png": b"no image"})
    with pytest.raises(
        ValueError, match=r"images_evaluation\.zip \(images_evaluation/Angelic/.*0001_01\.png\) cannot be"
    ):
        omniglot(root=root)
    write_zip(root / "images_evaluation.zip", {"readme.txt": b"nothing"})
    with pytest.raises(ValueError, match=r"has no Alphabet/characterNN"):
        omniglot(root=root)
    write_zip(root / "images_evaluation.zip", {"../Angelic/character01/0001_01.png": encode(strokes(0) == 0)})
    with pytest.raises(ValueError, match="points outside"):
        omniglot(root=root)


def test_omniglot_packed_that_does_not_fit_is_refused(root):
    omniglot_packed(root / "omniglot_28.npz", ROWS, images=noise(0, 3, 28, 28))
    with pytest.raises(ValueError, match="expected 14 images"):
        omniglot(root=root)
    omniglot_packed(root / "omniglot_28.npz", ROWS)
    with pytest.raises(ValueError, match="no array named images"):
        omniglot(root=root)
    (root / "omniglot_28.npz").unlink()
    omniglot_packed(root / "omniglot_105.npz", ROWS, packed=noise(0, 14, 5), shape=np.array([105, 105]))
    with pytest.raises(ValueError, match="do not fit 14 drawings"):
        omniglot(root=root)


def test_the_alphabet_of_a_class_is_in_its_name():
    assert alphabet("Japanese_(hiragana)/character07") == "Japanese_(hiragana)" and len(set(BACKGROUND)) == 30


@needs_real("omniglot_28.npz", "omniglot_105.npz")
def test_real_omniglot_is_the_same_at_28_and_from_105(root):
    (root / "omniglot_105.npz").symlink_to(REAL / "omniglot_105.npz")
    large, small = omniglot(root=root), omniglot(root=REAL)
    assert large.classes == 1623 and large.size == 32460
    assert _same(large, small)


# --- EMNIST -----------------------------------------------------------------------------------------------------------

IMAGES_GZ, LABELS_GZ = "emnist-byclass-train-images-idx3-ubyte.gz", "emnist-byclass-train-labels-idx1-ubyte.gz"


def test_emnist_packed_is_inverted(root):
    images = emnist_packed(root / "emnist_62x200.npz")
    data = emnist(root=root)
    assert data.names == NAMES and "".join(NAMES[8:13]) == "89ABC" and len(NAMES) == 62
    assert np.array_equal(data.images[:, 0].numpy(), 255 - images)
    assert data.counts.tolist() == [2] * 62


@pytest.mark.parametrize("form", ["zip", "folder"])
def test_emnist_class_folders_are_those_of_the_packed_file(root, tmp_path, form):
    images = emnist_packed(tmp_path / "emnist_62x200.npz", per_class=11)
    files = {f"emnist/{i // 11}/{i % 11}.png": encode(image) for i, image in enumerate(images)}
    write_zip(root / "emnist.zip", files) if form == "zip" else write_folder(root, files)
    assert _same(emnist(root=root), emnist(root=tmp_path))
    assert _same(emnist(root=root, crop=True), emnist(root=tmp_path, crop=True))


def test_emnist_crop_is_that_of_omniglot(root):
    images = emnist_packed(root / "emnist_62x200.npz")
    cropped = emnist(root=root, crop=True).images[:, 0].numpy()
    assert np.array_equal(cropped[5], character(images[5], crop=True))


def test_emnist_idx_takes_the_first_200_of_each_class_upright(root):
    """The oracle scans the labels in file order, keeps at most 200 a class and transposes each image."""
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.concatenate([np.repeat(7, 230), np.repeat(np.arange(62), 3)])).astype(np.uint8)
    images = rng.integers(0, 256, (len(labels), 28, 28), dtype=np.uint8)
    write_idx(root / IMAGES_GZ, images, 2051)
    write_idx(root / LABELS_GZ, labels, 2049)
    data = emnist(root=root)
    kept = {c: [] for c in range(62)}
    for image, label in zip(images, labels, strict=True):
        if len(kept[label]) < 200:
            kept[label].append(255 - image.T)
    assert data.counts.max() == 200 and data.counts.min() == 3
    assert np.array_equal(data.images[:, 0].numpy(), np.concatenate([np.stack(kept[c]) for c in range(62)]))
    assert data.labels.tolist() == sorted(data.labels.tolist())


@pytest.mark.parametrize(
    ("images", "labels", "match"),
    [
        ((62, 2050), (62, 2049), r"images.* magic number is 2050, not 2051"),
        ((62, 2051), (62, 2051), r"labels.* magic number"),
        ((61, 2051), (62, 2049), "expected 62 images"),
    ],
)
def test_emnist_idx_with_a_wrong_header_is_refused(root, images, labels, match):
    write_idx(root / IMAGES_GZ, noise(0, images[0], 28, 28), images[1])
    write_idx(root / LABELS_GZ, np.arange(labels[0], dtype=np.uint8), labels[1])
    with pytest.raises(ValueError, match=match):
        emnist(root=root)


def test_emnist_idx_that_declares_what_it_does_not_hold_is_refused(root):
    write_idx(root / LABELS_GZ, np.arange(62, dtype=np.uint8), 2049)
    whole = gzip.decompress(write_idx(root / IMAGES_GZ, noise(0, 62, 28, 28), 2051).read_bytes())
    (root / IMAGES_GZ).write_bytes(gzip.compress(whole[:-1]))
    with pytest.raises(ValueError, match="ends before its last image"):
        emnist(root=root)
    (root / LABELS_GZ).write_bytes(gzip.compress(bytes.fromhex("00000801ffffffff") + b"\0"))
    with pytest.raises(ValueError, match="should hold 4294967295 labels and has 1"):
        emnist(root=root)
    (root / LABELS_GZ).write_bytes(gzip.compress(b"\0\0"))
    with pytest.raises(ValueError, match="within its header"):
        emnist(root=root)
    truncate(root / IMAGES_GZ)
    write_idx(root / LABELS_GZ, np.arange(62, dtype=np.uint8), 2049)
    with pytest.raises(ValueError, match=r"images-idx3-ubyte\.gz is damaged"):
        emnist(root=root)


def test_emnist_without_some_class_is_refused(root):
    write_zip(root / "emnist.zip", {f"emnist/{c}/0.png": encode(noise(c, 28, 28)) for c in range(61)})
    with pytest.raises(ValueError, match="no images of z"):
        emnist(root=root)


# --- mini-ImageNet ----------------------------------------------------------------------------------------------------


def _table(root, part, rows, header=("filename", "label")):
    text = io.StringIO()
    csv.writer(text).writerows([header, *rows])
    (root / f"{part}.csv").write_text(text.getvalue())


def _write_mini(root, form):
    """Two classes a part, files of any size; rows of the csv out of order."""
    files = {}
    for k, part in enumerate(("train", "val", "test")):
        rows = [(f"n0{k}{c}{i:08d}.jpg", f"n0{k}{c}") for i in range(3) for c in (1, 0)]
        for i, (name, _) in enumerate(rows):
            files[name] = encode(np.full((30, 50, 3), 40 * k + 5 * i, np.uint8), "JPEG")
        _table(root, part, rows)
    if form == "folder":
        write_folder(root / "images", files)
    else:
        write_zip(root / "images.zip", {f"{form}{name}": data for name, data in files.items()})


@pytest.mark.parametrize("form", ["folder", "images/", ""])
def test_mini_imagenet_as_csv_and_images(root, form):
    _write_mini(root, form)
    data = mini_imagenet("val", root=root)
    assert data.images.shape == (6, 3, 84, 84) and data.names == ("n010", "n011")
    assert data.labels.tolist() == [0, 0, 0, 1, 1, 1]
    levels = data.images.float().mean((1, 2, 3)).round().tolist()
    assert levels == [45, 55, 65, 40, 50, 60]  # rows by class, then name: 40 + 5 i for i = 1, 3, 5, 0, 2, 4


def test_mini_imagenet_packed_is_what_pillow_decodes(root):
    files = {}
    for part, wnids in (("train_a", ["n1", "n2"]), ("train_b", ["n3"]), ("val", ["n4"]), ("test", ["n5"])):
        files[part] = mini_imagenet_packed(root / f"mini_imagenet_{part}.npz", wnids)
    data = mini_imagenet("train", root=root)
    assert data.names == ("n1", "n2", "n3") and data.counts.tolist() == [2, 2, 2]
    for image, file in zip(data.images.numpy(), files["train_a"] + files["train_b"], strict=True):
        assert np.array_equal(image.transpose(1, 2, 0), np.asarray(Image.open(io.BytesIO(file))))
    assert mini_imagenet("test", root=root).names == ("n5",)
    with pytest.raises(ValueError, match="parts train, val, test; got 'novel'"):
        mini_imagenet("novel", root=root)


def test_mini_imagenet_damaged(root):
    _write_mini(root, "folder")
    (root / "images" / "n00000000001.jpg").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"n00000000001\.jpg\) cannot be read"):
        mini_imagenet("train", root=root)
    (root / "images" / "n00000000001.jpg").unlink()
    with pytest.raises(ValueError, match=r"1 of 6 files missing, the first 'n00000000001\.jpg'"):
        mini_imagenet("train", root=root)
    _table(root, "train", [("a.jpg", "n1")], header=("file", "class"))
    with pytest.raises(ValueError, match=r"train\.csv: .*filename,label; it is 'file,class'"):
        mini_imagenet("train", root=root)
    _table(root, "train", [("a.jpg", "n1", "more")])
    with pytest.raises(ValueError, match="line 2 does not have two columns"):
        mini_imagenet("train", root=root)
    _table(root, "train", [("a.jpg", "n1"), ("a.jpg", "n2")])
    with pytest.raises(ValueError, match="twice"):
        mini_imagenet("train", root=root)
    _table(root, "train", [])
    with pytest.raises(ValueError, match="no rows"):
        mini_imagenet("train", root=root)
    (root / "train.csv").write_bytes(b"\xff\xfe\x00filename")
    with pytest.raises(ValueError, match=r"train\.csv is damaged"):
        mini_imagenet("train", root=root)


def test_a_csv_cannot_reach_outside_its_images(root):
    _write_mini(root, "folder")
    (root / "secret.jpg").write_bytes(encode(noise(0, 8, 8, 3), "JPEG"))
    _table(root, "train", [("../secret.jpg", "n1")])
    with pytest.raises(ValueError, match="1 of 1 files missing"):
        mini_imagenet("train", root=root)


def test_mini_imagenet_packed_with_damaged_scans_names_the_image(root):
    for part in ("train_a", "train_b", "val", "test"):
        mini_imagenet_packed(root / f"mini_imagenet_{part}.npz", ["n1"])
    with np.load(root / "mini_imagenet_val.npz") as file:
        arrays = dict(file)
    np.savez(root / "mini_imagenet_val.npz", **(arrays | {"jpeg_header": np.zeros(9, np.uint8)}))
    with pytest.raises(ValueError, match=r"mini_imagenet_val\.npz \(image 0\) cannot be read"):
        mini_imagenet("val", root=root)
    np.savez(root / "mini_imagenet_val.npz", **(arrays | {"label": np.zeros(1, np.uint8)}))
    with pytest.raises(ValueError, match="1 labels for 2 images"):
        mini_imagenet("val", root=root)


# --- CUB --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["archive", "folder"])
def test_cub_as_published(root, form):
    """Nine species: base are the 1st, 3rd, …, validation the 2nd, 6th, novel the 4th, 8th."""
    files = cub_files(9)
    write_tar(root / "CUB_200_2011.tgz", files) if form == "archive" else write_folder(root, files)
    names = cub_names(9)
    base, val, novel = (cub(part, root=root) for part in ("base", "val", "novel"))
    assert base.names == tuple(names[i] for i in (0, 2, 4, 6, 8)) and base.images.shape == (10, 3, 256, 256)
    assert val.names == (names[1], names[5]) and val.images.shape == (4, 3, 96, 96)
    assert novel.names == (names[3], names[7]) and novel.counts.tolist() == [2, 2]
    levels = novel.images.float().mean((1, 2, 3)).round().tolist()
    assert levels == [3 * i for i in (6, 7, 14, 15)]


def test_cub_packed(root):
    cub_packed(root, 8)
    val = cub("val", root=root)
    assert val.names == tuple(cub_names(8)[i] for i in (1, 5)) and val.images.shape == (2, 3, 96, 96)
    assert cub("base", root=root).images.shape == (4, 3, 256, 256)
    assert val.images.float().mean((1, 2, 3)).tolist() == [2, 6]
    with pytest.raises(ValueError, match="parts base, val, novel; got 'test'"):
        cub("test", root=root)


def test_cub_parts_are_100_50_50():
    parts = [part_of(i) for i in range(200)]
    assert [parts.count(p) for p in ("base", "val", "novel")] == [100, 50, 50]
    assert all((part == "base") == (i % 2 == 0) and (part == "novel") == (i % 4 == 3) for i, part in enumerate(parts))


def test_cub_damaged(root):
    files = cub_files(4)
    path = root / "CUB_200_2011.tgz"
    write_tar(path, {name: data for name, data in files.items() if not name.endswith("classes.txt")})
    with pytest.raises(ValueError, match=r"has no classes\.txt"):
        cub("val", root=root)
    write_tar(path, files | {"CUB_200_2011/images.txt": b"1 a b c\n"})
    with pytest.raises(ValueError, match=r"images\.txt: each line"):
        cub("val", root=root)
    write_tar(path, files | {"CUB_200_2011/images.txt": b"1 a.jpg\n"})
    with pytest.raises(ValueError, match="do not fit each other"):
        cub("val", root=root)
    picture = next(name for name in files if "002.Bird" in name)
    write_tar(path, {name: data for name, data in files.items() if name != picture})
    with pytest.raises(ValueError, match="1 of 2 files missing"):
        cub("val", root=root)
    write_tar(path, files | {picture: b"no image"})
    with pytest.raises(ValueError, match=r"002\.Bird_B.*cannot be read"):
        cub("val", root=root)
    write_tar(path, files)
    truncate(path)
    with pytest.raises(ValueError, match=r"CUB_200_2011\.tgz is damaged"):
        cub("novel", root=root)


# --- a folder of one's own --------------------------------------------------------------------------------------------


def _pictures(path, classes, prefix="class", kind="PNG"):
    for c in range(classes):
        pixels = np.full((12, 20, 3), 20 * c, np.uint8)
        write_folder(path / f"{prefix}{c}", {f"{i}.{kind.lower()}": encode(pixels, kind) for i in range(2)})
    return path


def test_a_folder_of_class_folders(root):
    _pictures(root, 3)
    (root / "notes.txt").write_text("passed over")
    (root / "class0" / "notes.txt").write_text("passed over")
    (root / ".hidden").mkdir()
    data = folder(root, size=8)
    assert data.images.shape == (6, 3, 8, 8) and data.names == ("class0", "class1", "class2")
    assert data.images.float().mean((1, 2, 3)).tolist() == [0, 0, 20, 20, 40, 40]
    assert folder(root, size=8, channels=1).images.shape == (6, 1, 8, 8)


def test_a_folder_that_changes_is_read_again(root):
    _pictures(root, 2)
    assert folder(root, size=4).classes == 2
    _pictures(root, 3)
    assert folder(root, size=4).classes == 3


def test_an_unreadable_picture_is_named(root):
    _pictures(root, 3)
    (root / "class1" / "broken.jpg").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"class1.broken\.jpg cannot be read"):
        folder(root)


def test_folders_that_hold_no_dataset_say_what_is_missing(root):
    with pytest.raises(FileNotFoundError, match="one sub-folder a class"):
        folder(root / "nowhere")
    with pytest.raises(ValueError, match="no sub-folders"):
        folder(root)
    (root / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty: it has no pictures"):
        folder(root)
    with pytest.raises(ValueError, match="1 or 3 channels"):
        folder(root, channels=2)


def test_splitting_by_class_covers_all_classes_once_and_follows_its_seed(root):
    data = folder(_pictures(root, 10), size=4)
    splits = split_classes(data, seed=1)
    assert [part.classes for part in splits] == [6, 2, 2]
    assert sorted(name for part in splits for name in part.names) == list(data.names)
    assert split_classes(data, seed=1).test.names == splits.test.names
    assert len({split_classes(data, seed=s).test.names for s in range(8)}) > 1
    assert [p.classes for p in folder_splits(root, size=4, seed=1, minimum=3)] == [4, 3, 3]
    assert folder_splits(root, size=4, seed=1).test.names == splits.test.names


def test_too_few_classes_are_refused(root):
    _pictures(root, 5)
    with pytest.raises(ValueError, match="needs 6 classes at least, 2 each .* got 5"):
        folder_splits(root, size=4)
    with pytest.raises(ValueError, match="sum to 1"):
        split_classes(folder(root, size=4), fractions=(1, 1, 1))


@pytest.mark.parametrize("validation", ["val", "validation"])
def test_given_parts_are_the_split(root, validation):
    for name, classes in (("train", 3), (validation, 2), ("test", 2)):
        _pictures(root / name, classes, prefix=f"{name}-")
    splits = folder_splits(root, size=4)
    assert splits.train.names == ("train-0", "train-1", "train-2") and splits.validation.classes == 2
    with pytest.raises(ValueError, match="validation has 2 classes and needs 3"):
        folder_splits(root, size=4, minimum=3)


def test_given_parts_that_share_a_class_are_refused(root):
    for name in ("train", "val", "test"):
        _pictures(root / name, 2)
    with pytest.raises(ValueError, match="no class in common"):
        folder_splits(root, size=4)
