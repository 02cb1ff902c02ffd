# Takes a batch as ended that the GPU is still copying.
s/if \(is_answer\(result\)\) return result == CUDA_SUCCESS;/if (is_answer(result)) return true;/
