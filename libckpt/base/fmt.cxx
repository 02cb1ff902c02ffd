// fmt's one compilation: everything else only declares it. Weak, so that a program may have its own
// fmt of the same version beside a static libckpt.
#include <fmt/format.h>
#undef FMT_FUNC
#define FMT_FUNC [[gnu::weak]]
#include <fmt/format-inl.h>

template auto fmt::detail::dragonbox::to_decimal(float) noexcept -> decimal_fp<float>;
template auto fmt::detail::dragonbox::to_decimal(double) noexcept -> decimal_fp<double>;
template fmt::detail::locale_ref::locale_ref(const std::locale&);
template auto fmt::detail::locale_ref::get<std::locale>() const -> std::locale;
template auto fmt::detail::thousands_sep_impl<char>(locale_ref) -> thousands_sep_result<char>;
template auto fmt::detail::decimal_point_impl(locale_ref) -> char;
template void fmt::detail::buffer<char>::append(const char*, const char*);
