"""ResNet-18/50 and DenseNet-121 against compact PyTorch modules with torchvision's names (it is not installed)."""

import collections
import functools
import json

import pytest

torch = pytest.importorskip("torch")

from encoders.torch_checkpoints import as_torch, largest_difference, pictures, randomise
from safetensors.torch import save_file
from torch import nn

from stepcot_jax.encoders import checkpoints
from stepcot_jax.encoders.load import load_image_encoder
from stepcot_jax.encoders.torchvision_networks import FrozenDenseNet, FrozenResNet
from stepcot_jax.host.errors import BadInput

relu = nn.functional.relu


class Residual(nn.Module):
    def __init__(self, before, width, stride, *, bottleneck):
        super().__init__()
        after = 4 * width if bottleneck else width
        if bottleneck:  # torchvision's "v1.5": the stride is in the 3 x 3 convolution
            sizes = [(before, width, 1, 1), (width, width, 3, stride), (width, after, 1, 1)]
        else:
            sizes = [(before, width, 3, stride), (width, width, 3, 1)]
        self.num_layers = len(sizes)
        for k, (into, out, size, step) in enumerate(sizes, start=1):
            setattr(self, f"conv{k}", nn.Conv2d(into, out, size, step, size // 2, bias=False))
            setattr(self, f"bn{k}", nn.BatchNorm2d(out))
        self.downsample = None
        if stride != 1 or before != after:
            self.downsample = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x):
        residual = x if self.downsample is None else self.downsample(x)
        for k in range(1, self.num_layers + 1):
            x = getattr(self, f"bn{k}")(getattr(self, f"conv{k}")(x))
            x = relu(x) if k < self.num_layers else x
        return relu(x + residual)


class ResNet(nn.Module):
    def __init__(self, blocks, *, bottleneck, stem=8):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, stem, 7, 2, 3, bias=False), nn.BatchNorm2d(stem)
        before = stem
        for stage, num_blocks in enumerate(blocks):
            layers = []
            for block in range(num_blocks):
                width = stem * 2**stage
                layers.append(Residual(before, width, 2 if stage and not block else 1, bottleneck=bottleneck))
                before = 4 * width if bottleneck else width
            setattr(self, f"layer{stage + 1}", nn.Sequential(*layers))
        self.fc = nn.Linear(before, 1000)

    def last_map(self, x):
        x = nn.functional.max_pool2d(relu(self.bn1(self.conv1(x))), 3, 2, 1)
        return self.layer4(self.layer3(self.layer2(self.layer1(x))))


class Dense(nn.Module):
    def __init__(self, before):
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(before), nn.Conv2d(before, 16, 1, bias=False)
        self.norm2, self.conv2 = nn.BatchNorm2d(16), nn.Conv2d(16, 4, 3, 1, 1, bias=False)

    def forward(self, x):
        return torch.cat([x, self.conv2(relu(self.norm2(self.conv1(relu(self.norm1(x))))))], dim=1)


class DenseNet(nn.Module):
    def __init__(self, layers_per_block):
        super().__init__()
        layers = {"conv0": nn.Conv2d(3, 8, 7, 2, 3, bias=False), "norm0": nn.BatchNorm2d(8)}
        layers |= {"relu0": nn.ReLU(), "pool0": nn.MaxPool2d(3, 2, 1)}
        before = 8
        for block, num_layers in enumerate(layers_per_block, start=1):
            dense = {f"denselayer{k + 1}": Dense(before + 4 * k) for k in range(num_layers)}
            layers[f"denseblock{block}"] = _named(dense)
            before += 4 * num_layers
            if block < len(layers_per_block):
                transition = {"norm": nn.BatchNorm2d(before), "relu": nn.ReLU()}
                transition |= {"conv": nn.Conv2d(before, before // 2, 1, bias=False), "pool": nn.AvgPool2d(2, 2)}
                layers[f"transition{block}"] = _named(transition)
                before //= 2
        layers["norm5"] = nn.BatchNorm2d(before)
        self.features = _named(layers)
        self.classifier = nn.Linear(before, 1000)

    def last_map(self, x):
        return relu(self.features(x))


def _named(layers):
    return nn.Sequential(collections.OrderedDict(layers))


DENSE = (2, 1, 1)
MAKERS = {
    "resnet18": lambda: ResNet((2, 1, 1, 1), bottleneck=False),
    "resnet50": lambda: ResNet((2, 1, 1, 1), bottleneck=True),
    "densenet121": lambda: DenseNet(DENSE),
}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Checkpoints are read as small networks of the architecture that they name."""

    def make(name, dtype):
        return FrozenResNet((2, 1, 1, 1), bottleneck=name == "resnet50", stem_width=8, dtype=dtype)

    monkeypatch.setattr(checkpoints, "make_frozen_resnet", make)
    dense = functools.partial(FrozenDenseNet, DENSE, growth=4, stem_width=8)
    monkeypatch.setattr(checkpoints, "FrozenDenseNet", dense)
    return monkeypatch


def old_name(name):
    """Published DenseNet files write norm.1 for norm1."""
    for layer in ("norm1", "norm2", "conv1", "conv2"):
        name = name.replace(f".{layer}.", f".{layer[:-1]}.{layer[-1]}.")
    return name


@pytest.mark.parametrize(("name", "is_old"), [*((name, False) for name in MAKERS), ("densenet121", True)])
def test_features(tmp_path, name, is_old):
    model = randomise(MAKERS[name]())
    path = tmp_path / f"{name}-0123abcd.pth"
    torch.save({old_name(key) if is_old else key: tensor for key, tensor in model.state_dict().items()}, path)
    encoder = load_image_encoder(str(path))
    images = pictures(0, 2, 96)
    with torch.inference_mode():
        last_map = model.last_map(as_torch(images))
    expected, tokens = last_map.mean((2, 3)), last_map.flatten(2).transpose(1, 2)  # positions row by row
    pooled, patches = encoder.encode_patches(images)
    assert (encoder.width, patches.shape) == (expected.shape[1], tuple(tokens.shape))
    for found in (pooled, encoder.encode(images)):
        assert largest_difference(found, expected) <= 1e-4 * max(float(expected.abs().max()), 1)
    assert largest_difference(patches, tokens) <= 1e-4 * max(float(tokens.abs().max()), 1)
    assert encoder.preprocessing.mean == (0.485, 0.456, 0.406)


def test_the_architecture_is_in_the_config_and_a_file_of_another_size_is_refused(tmp_path):
    model = randomise(MAKERS["resnet18"]())
    (tmp_path / "folder").mkdir()
    save_file(model.state_dict(), tmp_path / "folder" / "model.safetensors")
    (tmp_path / "folder" / "config.json").write_text(json.dumps({"architecture": "resnet18", "num_classes": 1000}))
    assert load_image_encoder(str(tmp_path / "folder")).width == 64
    torch.save(model.state_dict(), tmp_path / "resnet50.pth")
    with pytest.raises(BadInput, match=r"missing: .*layer3\.0\.conv3\.weight.*layer1\.0\.conv1\.weight has shape"):
        load_image_encoder(str(tmp_path / "resnet50.pth"))
