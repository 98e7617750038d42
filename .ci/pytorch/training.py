"""The programs train this model and infer with it."""

import torch


class Stack(torch.nn.Module):
    """Layers of a transformer, in turns on so many devices."""

    def __init__(self, layers, devices, checkpointing):
        super().__init__()
        self.devices = [f"cuda:{number % devices}" for number in range(layers)]
        layer = lambda: torch.nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True, dropout=0.0)
        self.layers = torch.nn.ModuleList(layer().to(device) for device in self.devices)
        self.checkpointing = checkpointing

    def forward(self, data):
        for layer, device in zip(self.layers, self.devices):
            data = data.to(device)
            if self.checkpointing:
                data = torch.utils.checkpoint.checkpoint(layer, data, use_reentrant=False)
            else:
                data = layer(data)
        return data


class Training:
    """Forward on this thread, backward on the one of autograd."""

    def __init__(self, layers=2, devices=1, checkpointing=False):
        torch.manual_seed(0)
        torch.set_num_threads(1)
        self.model = Stack(layers, devices, checkpointing)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.data = torch.randn(8, 128, 256, device="cuda:0")

    def step(self):
        """Without a wait for the GPU."""
        self.optimizer.zero_grad(set_to_none=True)
        output = self.model(self.data)
        loss = (output - self.data.to(output.device)).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss

    def waiting_step(self):
        return self.step().item()

    def grow(self):
        self.data = torch.cat([self.data, self.data])

    def predict(self, data):
        with torch.no_grad():
            return self.model(data)

    def infer(self, data):
        """With a wait for the GPU."""
        return self.predict(data).cpu()
