"""The machine of a run: its name, versions, and the clock and power of the moment."""

import os
import pathlib
import subprocess
from typing import Any


class CpuMachine:
    """The host's processor."""

    def __init__(self) -> None:
        self.threads = int(os.environ.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0)))
        self.description = {"gpu": f"{_cpu_model()}, {self.threads} threads"}
        self.description |= {"driver": None, "cuda": None}

    def read(self) -> tuple[float, float] | None:
        """(clock in MHz, power in W), where they can be read."""
        return None


class CudaMachine:
    """A CUDA device, read through NVML where pynvml is installed and through nvidia-smi elsewhere.

    The driver averages power over about a second, which is many samples of many implementations.
    """

    def __init__(self, device: str) -> None:
        import torch

        properties = torch.cuda.get_device_properties(device)
        self.uuid = f"GPU-{properties.uuid}"
        try:
            import pynvml

            pynvml.nvmlInit()
            self.nvml: Any = pynvml
            self.handle = pynvml.nvmlDeviceGetHandleByUUID(self.uuid)
            driver = pynvml.nvmlSystemGetDriverVersion()
        except ImportError:
            self.nvml = None
            driver = self._nvidia_smi("driver_version")[0]
        self.description = {
            "gpu": properties.name,
            "driver": driver,
            "cuda": torch.version.cuda,
        }

    def _nvidia_smi(self, fields: str) -> list[str]:
        command = ["nvidia-smi", f"--id={self.uuid}", f"--query-gpu={fields}"]
        command += ["--format=csv,noheader,nounits"]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return [value.strip() for value in output.split(",")]

    def read(self) -> tuple[float, float] | None:
        """(SM clock in MHz, power in W)."""
        if self.nvml is None:
            clock, power = self._nvidia_smi("clocks.sm,power.draw")
            return float(clock), float(power)
        clock = self.nvml.nvmlDeviceGetClockInfo(self.handle, self.nvml.NVML_CLOCK_SM)
        return float(clock), self.nvml.nvmlDeviceGetPowerUsage(self.handle) / 1e3


def _cpu_model() -> str:
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "CPU"
