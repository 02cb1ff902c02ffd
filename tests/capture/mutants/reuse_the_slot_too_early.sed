# Takes a batch as ended that the GPU is still copying.
s/if \(is_answer\(result\)\) return state_\.has_ended\(result, "copy from the GPU"\);/if (is_answer(result)) return true;/
