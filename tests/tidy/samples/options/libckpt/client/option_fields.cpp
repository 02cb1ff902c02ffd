constexpr std::array fields = {
    text_field<&Options::job>("job"),
    text_field<&Options::dir>("dir"),
};
