"""Networks on images, volumes and their like."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

T = torch.Tensor


def conv_norm(inner: int, out: int, size: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    norm = nn.BatchNorm2d(out)
    norm.running_mean.uniform_(-0.2, 0.2)
    norm.running_var.uniform_(0.5, 1.5)
    return nn.Sequential(nn.Conv2d(inner, out, size, stride, size // 2, groups=groups, bias=False), norm)


class Head(nn.Module):
    """Logits from the mean of the pixels."""

    def __init__(self, body: nn.Module, width: int) -> None:
        super().__init__()
        self.body, self.linear = body, nn.Linear(width, 7)

    def forward(self, image: T) -> T:
        return self.linear(self.body(image).mean((2, 3)))


class Residual(nn.Module):
    def __init__(
        self, inner: nn.Module, around: nn.Module | None = None, active: Callable[[T], T] | None = None
    ) -> None:
        super().__init__()
        self.inner, self.around, self.active = inner, around or nn.Identity(), active or nn.Identity()

    def forward(self, x: T) -> T:
        return self.active(self.inner(x) + self.around(x))


def resnet() -> nn.Module:
    def block(inner: int, out: int, stride: int) -> nn.Module:
        body = nn.Sequential(conv_norm(inner, out, 3, stride), nn.ReLU(), conv_norm(out, out))
        return Residual(body, None if inner == out else conv_norm(inner, out, 1, stride), nn.ReLU())

    stem = nn.Sequential(conv_norm(3, 8, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    return Head(nn.Sequential(stem, block(8, 8, 1), block(8, 16, 2)), 16)


def bottleneck() -> nn.Module:
    """ResNeXt's: grouped in the middle."""
    body = nn.Sequential(conv_norm(16, 8, 1), nn.ReLU(), conv_norm(8, 8, 3, groups=4), nn.ReLU(), conv_norm(8, 16, 1))
    return Head(nn.Sequential(conv_norm(3, 16, 3, 2), Residual(body, active=nn.ReLU())), 16)


class SqueezeExcite(nn.Module):
    def __init__(self, width: int, inner: int, gate: nn.Module, active: nn.Module) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.mlp = nn.Sequential(nn.Conv2d(width, inner, 1), active, nn.Conv2d(inner, width, 1), gate)

    def forward(self, x: T) -> T:
        return x * self.mlp(self.pool(x))


def inverted(inner: int, wide: int, active: nn.Module, excite: nn.Module, size: int = 3) -> nn.Module:
    return Residual(nn.Sequential(
        conv_norm(inner, wide, 1), active, conv_norm(wide, wide, size, 1, wide), active, excite, conv_norm(wide, inner, 1),
    ))  # fmt: skip


def mobilenet() -> nn.Module:
    excite = SqueezeExcite(24, 6, nn.Hardsigmoid(), nn.ReLU())
    stem = nn.Sequential(conv_norm(3, 8, 3, 2), nn.Hardswish())
    return Head(nn.Sequential(stem, inverted(8, 24, nn.Hardswish(), excite, 5)), 8)


def mobilenet_v2() -> nn.Module:
    stem = nn.Sequential(conv_norm(3, 8, 3, 2), nn.ReLU6())
    return Head(nn.Sequential(stem, inverted(8, 24, nn.ReLU6(), nn.Identity())), 8)


def efficientnet() -> nn.Module:
    excite = SqueezeExcite(24, 6, nn.Sigmoid(), nn.SiLU())
    return Head(nn.Sequential(conv_norm(3, 8, 3, 2), nn.SiLU(), inverted(8, 24, nn.SiLU(), excite)), 8)


class ConvNeXtBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.scale = nn.Parameter(torch.rand(width))

    def forward(self, x: T) -> T:
        y = self.mlp(self.norm(self.depthwise(x).permute(0, 2, 3, 1)))
        return x + (self.scale * y).permute(0, 3, 1, 2)


def convnext() -> nn.Module:
    return Head(nn.Sequential(nn.Conv2d(3, 12, 4, 4), ConvNeXtBlock(12), ConvNeXtBlock(12)), 12)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = conv_norm(3, 8), conv_norm(8, 16)
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.join, self.out = conv_norm(16, 8), nn.Conv2d(8, 2, 1)

    def forward(self, image: T) -> T:
        one = F.relu(self.down1(image))
        two = F.relu(self.down2(F.max_pool2d(one, 2)))
        return self.out(F.relu(self.join(torch.cat([one, self.up(two)], 1))))


class DenseNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.layers = nn.ModuleList([conv_norm(8 + 4 * i, 4) for i in range(3)])
        self.transition = nn.Sequential(nn.Conv2d(20, 10, 1), nn.AvgPool2d(2))

    def forward(self, image: T) -> T:
        x = self.stem(image)
        for layer in self.layers:
            x = torch.cat([x, F.relu(layer(x))], 1)
        return self.transition(x)


class Inception(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.three, self.five = (
            nn.Conv2d(3, 4, 1),
            nn.Conv2d(3, 4, 3, padding=1),
            nn.Conv2d(3, 4, 5, padding=2),
        )
        self.pooled, self.out = nn.Conv2d(3, 4, 1), nn.Conv2d(16, 5, (1, 3), padding=(0, 1))

    def forward(self, image: T) -> T:
        pooled = self.pooled(F.max_pool2d(image, 3, 1, 1))
        return self.out(F.leaky_relu(torch.cat([self.one(image), self.three(image), self.five(image), pooled], 1), 0.1))


class ShuffleNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.branch = nn.Conv2d(3, 16, 3, 2, 1), nn.Sequential(conv_norm(8, 8, 1), conv_norm(8, 8, 3, 1, 8))

    def forward(self, image: T) -> T:
        left, right = self.stem(image).chunk(2, 1)
        return F.channel_shuffle(torch.cat([left, F.relu(self.branch(right))], 1), 2)


class Pyramid(nn.Module):
    """DeepLab's pooling at several dilations, and an image's mean spread out again."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList([nn.Conv2d(3, 4, 3, padding=d, dilation=d) for d in (1, 2, 4)])
        self.mean, self.out = nn.Conv2d(3, 4, 1), nn.Conv2d(16, 3, 1)

    def forward(self, image: T) -> T:
        whole = F.interpolate(self.mean(F.adaptive_avg_pool2d(image, 1)), image.shape[2:], mode="bilinear")
        return self.out(torch.cat([F.relu(branch(image)) for branch in self.branches] + [whole], 1))


class Interpolated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, image: T) -> tuple[T, ...]:
        x = self.conv(image)
        return (
            F.interpolate(x, scale_factor=2, mode="nearest"),
            F.interpolate(x, (11, 7), mode="bilinear", align_corners=False),
            F.interpolate(x, (13, 21), mode="bilinear", align_corners=True),
            F.interpolate(x, (20, 9), mode="bicubic", align_corners=False),
        )


class Pools(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, image: T) -> tuple[T, ...]:
        x = self.conv(image)
        return (
            F.adaptive_avg_pool2d(x, 7), F.avg_pool2d(x, 3, 2, 1, count_include_pad=True), F.max_pool2d(x, 3, 2, 1, 2),
            F.avg_pool2d(x, 2, 2, 1, count_include_pad=False), F.max_pool2d(x, 3, 2, ceil_mode=True), x.amax((2, 3)),
        )  # fmt: skip


class GAN(nn.Module):
    """DCGAN's generator."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(10, 32)
        self.up = nn.Sequential(
            nn.ConvTranspose2d(8, 8, 4, 2, 1), nn.InstanceNorm2d(8, affine=True), nn.ReLU(),
            nn.ConvTranspose2d(8, 4, 3, 2, 1, output_padding=1, groups=2), nn.PReLU(4), nn.ConvTranspose2d(4, 3, 3, dilation=2), nn.Tanh(),
        )  # fmt: skip

    def forward(self, noise: T) -> T:
        return self.up(self.linear(noise).reshape(-1, 8, 2, 2))


class SuperResolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.Sequential(nn.Conv2d(3, 8, 5, padding=2), nn.Tanh(), nn.Conv2d(8, 12, 3, padding=1))

    def forward(self, image: T) -> tuple[T, T]:
        fine = F.pixel_shuffle(self.convs(image), 2)
        return fine, F.pixel_unshuffle(fine, 2).square()


def group_normed() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.GroupNorm(4, 8), nn.Mish(), nn.Conv2d(8, 4, 3), nn.InstanceNorm2d(4))


def volumes() -> nn.Module:
    return nn.Sequential(
        nn.Conv3d(2, 6, 3, padding=1), nn.BatchNorm3d(6), nn.ELU(), nn.MaxPool3d(2), nn.Conv3d(6, 4, (1, 3, 2), 2), nn.Softplus(),
        nn.AvgPool3d((1, 2, 2), 1), nn.ConvTranspose3d(4, 2, 2),
    )  # fmt: skip


class Reflected(nn.Module):
    """Style transfer's: reflected margins, and a Gram matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(
            nn.ReflectionPad2d(2), nn.Conv2d(3, 6, 5), nn.CELU(), nn.ReplicationPad2d(1), nn.Conv2d(6, 6, 3)
        )

    def forward(self, image: T) -> T:
        x = self.conv(image).flatten(2)
        return torch.einsum("bip,bjp->bij", x, x) / x.shape[-1]


class Detector(nn.Module):
    """YOLO's: boxes from offsets, anchors and a grid."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 2 * 7, 3, 2, 1)
        self.register_buffer("anchors", torch.tensor([[1.0, 2.0], [3.0, 1.5]]).reshape(1, 2, 1, 1, 2))

    def forward(self, image: T) -> tuple[T, T]:
        x = self.conv(image)
        n, _, h, w = x.shape
        x = x.reshape(n, 2, 7, h, w).permute(0, 1, 3, 4, 2)
        sizes = torch.exp(x[..., 2:4].clamp(max=1.0)) * self.anchors
        return torch.cat([x[..., :2].sigmoid() * 2 - 0.5, sizes], -1), torch.log_softmax(x[..., 4:], -1)


def picture(size: int = 16) -> tuple[T]:
    return (torch.randn(2, 3, size, size),)


NETWORKS: dict[str, Callable[[], tuple[Any, tuple[Any, ...]]]] = {
    "resnet": lambda: (resnet(), picture(32)),
    "resnext": lambda: (bottleneck(), picture()),
    "mobilenet_v2": lambda: (mobilenet_v2(), picture()),
    "mobilenet_v3": lambda: (mobilenet(), picture()),
    "efficientnet": lambda: (efficientnet(), picture()),
    "convnext": lambda: (convnext(), picture(32)),
    "unet": lambda: (UNet(), picture()),
    "densenet": lambda: (DenseNet(), picture(8)),
    "inception": lambda: (Inception(), picture(9)),
    "shufflenet": lambda: (ShuffleNet(), picture()),
    "atrous_pyramid": lambda: (Pyramid(), picture()),
    "interpolate": lambda: (Interpolated(), picture(9)),
    "pools": lambda: (Pools(), picture()),
    "gan": lambda: (GAN(), (torch.randn(2, 10),)),
    "super_resolution": lambda: (SuperResolution(), picture(7)),
    "group_norm": lambda: (group_normed(), picture()),
    "volumes": lambda: (volumes(), (torch.randn(1, 2, 8, 12, 12),)),
    "style_transfer": lambda: (Reflected(), picture(9)),
    "detector": lambda: (Detector(), picture(10)),
}
