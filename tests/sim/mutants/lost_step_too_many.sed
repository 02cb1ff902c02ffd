# Takes the step that would have come next for one that was lost.
s/std::optional\(at\.step\)/std::optional(Step{number(at.step) + 1})/
