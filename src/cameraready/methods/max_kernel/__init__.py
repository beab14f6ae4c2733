"""Bayesian optimisation of functions with known symmetries, by the projected max kernel."""

from cameraready.methods.max_kernel.augmentation import augment, invariance_defect
from cameraready.methods.max_kernel.closed_forms import (
    BlockPermutations,
    CyclicShifts,
    Permutations,
    SignedPermutations,
    SignFlips,
)
from cameraready.methods.max_kernel.groups import Generator, Group
from cameraready.methods.max_kernel.listed import FromOrbit, Matrices
from cameraready.methods.max_kernel.loop import BOTrace, bo_loop
from cameraready.methods.max_kernel.max_kernel import MaxKernel, ProjectionError
from cameraready.methods.max_kernel.model import MaxKernelGP
from cameraready.methods.max_kernel.peer_kernels import CanonicalKernel, OrbitAverageKernel
from cameraready.methods.max_kernel.product import Product
from cameraready.methods.max_kernel.projection import psd_projection
from cameraready.methods.max_kernel.rotations import PointCloudRotations, Rotations

__all__ = [
    "BOTrace",
    "BlockPermutations",
    "CanonicalKernel",
    "CyclicShifts",
    "FromOrbit",
    "Generator",
    "Group",
    "Matrices",
    "MaxKernel",
    "MaxKernelGP",
    "OrbitAverageKernel",
    "Permutations",
    "PointCloudRotations",
    "Product",
    "ProjectionError",
    "Rotations",
    "SignFlips",
    "SignedPermutations",
    "augment",
    "bo_loop",
    "invariance_defect",
    "psd_projection",
]
