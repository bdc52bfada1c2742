"""Gates in your own training loop: one more term in the loss, nothing else changes.

python examples/own_loop.py
"""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy

import penstock as ps


def main(steps: int = 12) -> list[float]:
    """Returns the loss of every step."""
    torch.manual_seed(0)
    model = ps.zoo.pretrained("m_cifarnet-cifar10-dense")  # your trained network
    data = ps.datasets.sample()  # your data
    images, labels = model.preprocess(data.images), data.labels.long()

    gated = ps.add_gates(model, images[:1]).train()
    optimiser = torch.optim.SGD(gated.parameters(), lr=0.01, momentum=0.9)
    losses = []
    for step in range(steps):
        # The density falls from 1 to 0.5 in the first half of the run and stays there.
        ps.set_density(gated, max(0.5, 1 - step / steps))
        batch = torch.randint(len(images), (64,))
        loss = cross_entropy(gated(images[batch]), labels[batch]) + 1e-8 * ps.saliency_penalty(gated)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
        print(f"step {step + 1}: loss {losses[-1]:.3f}")

    engine = ps.compile(gated.eval(), images[:1])  # at the density that the loop ended with
    same = (engine(images[:64]).argmax(1) == labels[:64]).float().mean()
    print(f"{100 * same:.0f}% of 64 images right through the engine")
    return losses


if __name__ == "__main__":
    main()
