"""A program some of whose calls fail, by the script of the stand-ins."""

import gpu

# Each 50th launch fails, which PyTorch raises, and each 7th allocation finds no memory, after which PyTorch tries again.
SCRIPT = "cuLaunchKernel=error:719/50,cuMemAlloc_v2=error:2/7"


def failing(run):
    import torch

    numbers = torch.zeros(1024, device="cuda")
    driver = gpu.stand_in()
    failed = lambda: {name: driver.fake_failed(name.encode()) for name in ("cuLaunchKernel", "cuMemAlloc_v2")}
    run.ready()
    before, raised, blocks = failed(), 0, []
    for _ in range(1000):
        try:
            numbers.add_(1)
        except RuntimeError:
            raised += 1
    for _ in range(50):
        blocks.append(torch.empty(64 << 20, dtype=torch.uint8, device="cuda"))
    return {"raised": raised, "failed": {name: count - before[name] for name, count in failed().items()}}


PROGRAMS = (failing,)
