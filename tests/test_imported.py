"""Networks of others, by the name of the function that builds them: what is written is what they see."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

import program
from metavib.data.augmentations import IMAGENET_MEAN, IMAGENET_STD
from metavib.data.embeddings import read_embeddings, read_vectors
from metavib.networks.imported import embedding, imported, is_name

MODULE = """
import torch
from torch import nn

def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())

def of_sixty_four():
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 64 * 64, 5))

def maps():
    return nn.Conv2d(3, 6, 3)

number = 3
def three():
    return 3
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A working directory with a module of networks, other weights for one of them, and pictures of nine classes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "some_networks.py").write_text(MODULE)
    rng = np.random.default_rng(0)
    for c in range(9):
        (tmp_path / "pictures" / f"{c}").mkdir(parents=True)
        colour = rng.uniform(60, 200, 3)
        for i in range(7):
            pixels = np.clip(colour + rng.normal(0, 30, (3, 3, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).resize((24, 24)).save(tmp_path / "pictures" / f"{c}" / f"{i}.png")
    torch.manual_seed(1)
    other = imported("some_networks:network")
    for p in other.parameters():
        nn.init.normal_(p)
    save_file(other.state_dict(), tmp_path / "other.safetensors")
    return tmp_path


def by_hand(file, network, size=24):
    """A picture as torchvision's users prepare it, through the network."""
    x = torch.from_numpy(np.array(Image.open(file).resize((size, size)))).permute(2, 0, 1).float() / 255
    x = (x - torch.tensor(IMAGENET_MEAN)[:, None, None]) / torch.tensor(IMAGENET_STD)[:, None, None]
    with torch.no_grad():
        return network.eval()(x.unsqueeze(0))[0]


@pytest.mark.parametrize("weights", [None, "other.safetensors"])
def test_features_are_those_of_the_network_by_hand(place, weights):
    chosen = [] if weights is None else ["--weights", weights]
    arguments = ["embed", "some_networks:network", "images", "--root", "pictures", "--size", 24, *chosen]
    program.done(*arguments, "--no-split", "--out", "new.npz")
    found = read_vectors("new.npz")
    assert found.names == tuple("012345678") and found.size == 63
    network = imported("some_networks:network", weights and place / weights)
    wanted = torch.stack(
        [by_hand(place / "pictures" / f"{c}" / f"{i}.png", network) for c in range(9) for i in range(7)]
    )
    torch.testing.assert_close(found.images, wanted, rtol=5e-2, atol=5e-2)  # stored a little larger, and as float16


def test_a_folder_is_split_and_scored_and_methods_train_on_it(place):
    arguments = ["embed", "some_networks:network", "images", "--root", "pictures", "--size", 24, "--episodes", 20]
    scores = json.loads(program.done(*arguments, "--out", "all.npz", "--json"))
    parts = read_embeddings("all.npz")
    assert [part.classes for part in parts] == [3, 3, 3] and parts.train.images.shape[-1] == 24
    assert scores["test"]["centroids"]["5-shot"]["mean"] > 0.6  # classes are colours: a third by chance
    small = ["--set", "tasks.ways=3", "--set", "train.steps=5", "--set", "test.tasks=20", "--quiet", "--json"]
    small += ["--set", "tasks.queries=2", "--set", "test.queries=2", "--set", "train.validation_tasks=10"]
    run = json.loads(program.done("train", "embeddings", "--features", "all.npz", "--improved", "--out", "run", *small))
    assert run["rows"][0]["metrics"]["accuracy"]["mean"] > 0.5


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("some_networks:nothing", "has no nothing"),
        ("no_such_module:network", "no module 'no_such_module'"),
        ("some_networks:number", "is no function"),
        ("some_networks:three", "must return a torch.nn.Module; it returned int"),
        ("some_networks:maps", r"into features \(n, M\); got \(1, 6, 22, 22\)"),
    ],
)
def test_what_is_no_network_is_refused_in_a_sentence(place, name, message):
    with pytest.raises((ValueError, TypeError), match=message):
        embedding(name, size=24)


def test_weights_of_another_network_are_refused(place):
    save_file({"weight": torch.zeros(3)}, "odd.safetensors")
    (place / "text.safetensors").write_text("no weights")
    with pytest.raises(ValueError, match=r"does not hold the weights of this network(.|\n)*0\.weight"):
        imported("some_networks:network", place / "odd.safetensors")
    with pytest.raises(ValueError, match="is no safetensors file"):
        imported("some_networks:network", place / "text.safetensors")
    with pytest.raises(FileNotFoundError, match="no file of weights"):
        imported("some_networks:network", place / "absent.safetensors")


def test_pictures_of_another_size_are_refused_with_the_remedy(place):
    with pytest.raises(ValueError, match="cannot look at a picture .*--size"):
        embedding("some_networks:of_sixty_four", size=24)


def test_only_dotted_names_with_a_colon_are_names():
    assert is_name("timm:create_model") and is_name("a.b:c.d")
    assert not any(map(is_name, ("runs/mine", "mine.safetensors", "C:\\runs", ":f", "a:", "a:1")))
