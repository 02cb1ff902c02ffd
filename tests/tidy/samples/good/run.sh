#!/usr/bin/env bash
echo "$CKPT_GOOD" # TODO(#12)
