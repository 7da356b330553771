"""ResNet-18/50 and DenseNet-121 against compact PyTorch modules with torchvision's names (it is not installed)."""

import collections
import json

import pytest

torch = pytest.importorskip("torch")

from encoders.torch_checkpoints import as_torch, largest_difference, pictures, randomise
from safetensors.torch import save_file
from torch import nn

from stepcot_jax.encoders.load import load_image_encoder
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
    def __init__(self, blocks, *, bottleneck):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        before = 64
        for stage, num_blocks in enumerate(blocks):
            layers = []
            for block in range(num_blocks):
                width = 64 * 2**stage
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
        self.norm1, self.conv1 = nn.BatchNorm2d(before), nn.Conv2d(before, 128, 1, bias=False)
        self.norm2, self.conv2 = nn.BatchNorm2d(128), nn.Conv2d(128, 32, 3, 1, 1, bias=False)

    def forward(self, x):
        return torch.cat([x, self.conv2(relu(self.norm2(self.conv1(relu(self.norm1(x))))))], dim=1)


class DenseNet(nn.Module):
    def __init__(self):
        super().__init__()
        layers = {"conv0": nn.Conv2d(3, 64, 7, 2, 3, bias=False), "norm0": nn.BatchNorm2d(64)}
        layers |= {"relu0": nn.ReLU(), "pool0": nn.MaxPool2d(3, 2, 1)}
        before = 64
        for block, num_layers in enumerate((6, 12, 24, 16), start=1):
            dense = {f"denselayer{k + 1}": Dense(before + 32 * k) for k in range(num_layers)}
            layers[f"denseblock{block}"] = _named(dense)
            before += 32 * num_layers
            if block < 4:
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


MAKERS = {
    "resnet18": (lambda: ResNet((2, 2, 2, 2), bottleneck=False), 512, 11_176_512),
    "resnet50": (lambda: ResNet((3, 4, 6, 3), bottleneck=True), 2048, 23_508_032),
    "densenet121": (DenseNet, 1024, 6_953_856),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(MAKERS))
def test_features(tmp_path, name):
    make, width, num_parameters = MAKERS[name]
    model = randomise(make())
    path = tmp_path / f"{name}-0123abcd.pth"
    torch.save(model.state_dict(), path)
    encoder = load_image_encoder(str(path))
    images = pictures(0, 2, 64)
    with torch.inference_mode():
        last_map = model.last_map(as_torch(images))
    expected = last_map.mean((2, 3))
    scale = float(expected.abs().max())  # random networks have no scale of their own
    assert largest_difference(encoder.encode(images), expected) <= 1e-4 * max(scale, 1)
    assert (encoder.width, encoder.num_parameters) == (width, num_parameters)
    assert encoder.preprocessing.mean == (0.485, 0.456, 0.406)
    pooled, patches = encoder.encode_patches(images)
    expected = last_map.flatten(2).transpose(1, 2)
    assert patches.shape == (2, 4, width)  # 2 x 2 positions, row by row
    assert largest_difference(patches, expected) <= 1e-4 * max(float(expected.abs().max()), 1)
    assert largest_difference(pooled, encoder.encode(images)) <= 1e-5 * max(scale, 1)


@pytest.mark.slow
def test_densenet_with_the_names_of_old_files(tmp_path):
    model = randomise(DenseNet())
    torch.save(model.state_dict(), tmp_path / "densenet121.pth")
    renamed = {}
    for name, tensor in model.state_dict().items():
        for layer in ("norm1", "norm2", "conv1", "conv2"):
            name = name.replace(f".{layer}.", f".{layer[:-1]}.{layer[-1]}.")
        renamed[name] = tensor
    torch.save(renamed, tmp_path / "densenet121-a639ec97.pth")
    new, old = (load_image_encoder(str(tmp_path / f"densenet121{end}.pth")) for end in ("", "-a639ec97"))
    images = pictures(0, 1, 64)
    assert largest_difference(new.encode(images), old.encode(images)) == 0


def test_the_architecture_is_in_the_config_and_a_file_of_another_size_is_refused(tmp_path):
    model = randomise(ResNet((2, 2, 2, 2), bottleneck=False))
    (tmp_path / "folder").mkdir()
    save_file(model.state_dict(), tmp_path / "folder" / "model.safetensors")
    (tmp_path / "folder" / "config.json").write_text(json.dumps({"architecture": "resnet18", "num_classes": 1000}))
    assert load_image_encoder(str(tmp_path / "folder")).width == 512
    torch.save(model.state_dict(), tmp_path / "resnet50.pth")
    with pytest.raises(BadInput, match=r"missing: .*layer3\.5\.conv3\.weight.*layer1\.0\.conv1\.weight has shape"):
        load_image_encoder(str(tmp_path / "resnet50.pth"))
