// ckpt: everything that a C++ trainer includes.
#pragma once

#include <ckpt/checkpointer.hpp>
#include <ckpt/error.hpp>
#include <ckpt/options.hpp>
#include <ckpt/outcome.hpp>
#include <ckpt/piece.hpp>
#include <ckpt/progress.hpp>
#include <ckpt/published.hpp>
#include <ckpt/restore_request.hpp>
#include <ckpt/result.hpp>
#include <ckpt/stats.hpp>
#include <ckpt/tensor.hpp>
#include <ckpt/version.hpp>
