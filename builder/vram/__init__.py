"""How much GPU memory a training step takes, without a GPU.

- loop.py        TrainingLoop: what is run; Architecture: what it is run on
- models.py      a name, a config.json or sizes -> Architecture
- rule.py        the rule of thumb of guides, for comparison only
- analytic.py    closed form, no torch        (layers.py: what one layer keeps, per family)
- traced.py      real model code on the meta device (tracing/), replayed through
- allocator.py   a simulation of the CUDA caching allocator
- offsets.py     what neither sees: context, kernels, workspaces, per card
- estimate.py    all of it together -> VramEstimate
- fit.py         the largest batch; the least harmful change that fits
- plot.py        memory over one step as a picture
"""
