"""Ascend's operators without a device: their schemas, kernels written from the formulas, and the wheel on stubs."""
