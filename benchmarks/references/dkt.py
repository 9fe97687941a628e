"""A training step of DKT with GPyTorch: one ExactGP a class, all of them in an IndependentModelList, eager.

What a step does, all of which is timed:

1. An episode is put together: classes and images drawn with NumPy, pixels scaled and normalised, moved to the device.
   The images lie in memory: nothing is decoded, which is kinder to this reference than a loader of files would be.
2. Targets of +1 and -1 for each class, over support and query together; features of all images; the negative sum of the
   log marginal likelihoods; backward; Adam (1e-3 for the network, 1e-4 for the GPs).
3. With `evaluates`: the accuracy on support and on query in evaluation mode, as the training loop of DKT's authors
   computes it in every step.
"""

import gpytorch
import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.references.networks import conv4

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's, whatever the images


class ClassGP(gpytorch.models.ExactGP):
    """The GP of one class: constant mean, scaled linear kernel, noise fixed at 0.1."""

    def __init__(self, features: int, likelihood: gpytorch.likelihoods.GaussianLikelihood) -> None:
        likelihood.noise = 0.1
        likelihood.noise_covar.raw_noise.requires_grad_(False)
        super().__init__(torch.ones(2, features), torch.ones(2), likelihood)  # a place for data, set in each step
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.LinearKernel())

    def forward(self, z: Tensor) -> gpytorch.distributions.MultivariateNormal:
        """The prior at some features."""
        return gpytorch.distributions.MultivariateNormal(self.mean_module(z), self.covar_module(z))


class DKT:
    """Network, GPs and optimiser.

    Args:
        images: `(classes, images, channels, side, side)` uint8, on the CPU.
        size: side of the square cut from the middle of an image.
        ways, shots, queries: of an episode.
        evaluates: whether a step also evaluates.
        device: of the network and the GPs.
        seed: of the episodes.
    """

    def __init__(
        self,
        images: Tensor,
        *,
        size: int,
        ways: int = 5,
        shots: int = 1,
        queries: int = 16,
        evaluates: bool = True,
        device: str = "cpu",
        seed: int = 0,
    ) -> None:
        self.images, self.size = images, size
        self.ways, self.shots, self.queries = ways, shots, queries
        self.evaluates, self.device, self.rng = evaluates, device, np.random.default_rng(seed)
        channels = images.shape[2]
        self.network = conv4(channels).to(device)
        features = 64 * (size // 16) ** 2
        gps = [ClassGP(features, gpytorch.likelihoods.GaussianLikelihood()) for _ in range(ways)]
        self.gps = gpytorch.models.IndependentModelList(*gps).to(device)
        self.likelihood = gpytorch.likelihoods.LikelihoodList(*(gp.likelihood for gp in gps)).to(device)
        self.mll = gpytorch.mlls.SumMarginalLogLikelihood(self.likelihood, self.gps)
        self.optimiser = torch.optim.Adam(
            [{"params": self.network.parameters(), "lr": 1e-3}, {"params": self.gps.parameters(), "lr": 1e-4}]
        )
        self.accuracy = (float("nan"), float("nan"))

    def episode(self) -> Tensor:
        """Images `(ways, shots + queries, channels, size, size)` as the network takes them."""
        count = self.shots + self.queries
        edge = round((self.images.shape[-1] - self.size) / 2)
        classes = self.rng.choice(len(self.images), self.ways, replace=False)
        drawn = []
        for c in classes:
            which = torch.from_numpy(self.rng.choice(self.images.shape[1], count, replace=False))
            pixels = self.images[c, which, :, edge : edge + self.size, edge : edge + self.size]
            drawn.append(pixels.float() / 255)
        x = torch.stack(drawn)
        mean, std = (torch.tensor(v[: x.shape[2]]).view(-1, 1, 1) for v in (MEAN, STD))
        return ((x - mean) / std).to(self.device)

    def loss(self, x: Tensor) -> Tensor:
        """Minus the mean over classes and points of the log marginal likelihood, for `x (ways, points, ...)`."""
        count = x.shape[1]
        targets = []
        for way in range(self.ways):
            target = -torch.ones(self.ways * count)
            target[way * count : (way + 1) * count] = 1.0
            targets.append(target.to(self.device))
        self.gps.train()
        self.likelihood.train()
        self.network.train()
        z = self.network(x.flatten(0, 1))
        for gp, target in zip(self.gps.models, targets, strict=True):
            gp.set_train_data(inputs=z, targets=target, strict=False)
        outputs = self.gps(*self.gps.train_inputs)
        return -self.mll(outputs, self.gps.train_targets)

    def evaluate(self, x: Tensor) -> tuple[float, float]:
        """Accuracy on support and query; the GPs have just been conditioned on all of the episode."""
        return self._accuracy(x[:, : self.shots]), self._accuracy(x[:, self.shots :])

    @torch.no_grad()
    def _accuracy(self, x: Tensor) -> float:
        self.gps.eval()
        self.likelihood.eval()
        self.network.eval()
        z = self.network(x.flatten(0, 1))
        predictions = self.likelihood(*self.gps(*[z] * self.ways))
        scores = np.stack([torch.sigmoid(p.mean).cpu().numpy() for p in predictions])
        return float((scores.argmax(0) == np.repeat(np.arange(self.ways), x.shape[1])).mean())

    def step(self) -> Tensor:
        """One step of training; returns the loss before it."""
        x = self.episode()
        self.optimiser.zero_grad()
        loss = self.loss(x)
        loss.backward()
        self.optimiser.step()
        if self.evaluates:
            self.accuracy = self.evaluate(x)
        return loss.detach()


def parameters_of_gp(gp: nn.Module) -> tuple[float, float, float]:
    """Scale of the kernel k = scale phi . phi', constant mean, noise variance."""
    scale = gp.covar_module.outputscale * gp.covar_module.base_kernel.variance
    return float(scale), float(gp.mean_module.constant), float(gp.likelihood.noise)
