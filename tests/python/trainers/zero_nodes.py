"""zero.py with each rank on a node of its own: zero_nodes.py NODES JOB OPTIONS."""

import functools
import json
import os

import ranks
import torch
import zero


def train(job, options):
    os.environ.update(LOCAL_RANK="0", LOCAL_SIZE="1", OMP_NUM_THREADS="1")
    torch.set_num_threads(1)
    zero.train({**json.loads(options), "job": job})


main = functools.partial(ranks.main, train=train)
