# ckpt_module(NAME arena DEPS base os LIBS ...): one static library per folder of libckpt.
#
# The libraries are internal: unit tests link just the floor that they test, and the public target
# `ckpt` collects the same objects. Sources are the folder's .cpp files, found again at each build.
find_package(Threads REQUIRED)
find_package(Boost 1.81 REQUIRED)
find_package(fmt 9 REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(Liburing REQUIRED IMPORTED_TARGET liburing>=2.3)
pkg_check_modules(Isal REQUIRED IMPORTED_TARGET libisal)
pkg_check_modules(Xxhash REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(Curl REQUIRED libcurl>=7.74)
pkg_check_modules(Zstd REQUIRED libzstd>=1.4)
find_package(nlohmann_json 3.11 REQUIRED)
find_package(OpenSSL 3 REQUIRED COMPONENTS Crypto)

# The options of every target of the project; none of them leaks to users. All of them take
# the same code-generation flags (-fPIC, visibility), without which a precompiled header is refused.
add_library(ckpt_flags INTERFACE)
target_compile_features(ckpt_flags INTERFACE cxx_std_20)
target_compile_options(ckpt_flags INTERFACE
  -Wall -Wextra -Wpedantic
  # In a unity build, the constants of one file would forbid their names to the next one's locals,
  # and g++ takes each file for a header.
  $<$<NOT:$<BOOL:$<TARGET_PROPERTY:UNITY_BUILD>>>:-Wshadow>
  $<$<AND:$<CXX_COMPILER_ID:GNU>,$<BOOL:$<TARGET_PROPERTY:UNITY_BUILD>>>:-Wshadow=local
  -Wno-subobject-linkage>
  -Wnon-virtual-dtor -Winvalid-pch -Wno-missing-field-initializers
  -fPIC -fvisibility=hidden -fvisibility-inlines-hidden -fstack-protector-strong
  # g++ collects its garbage from 128 MiB on, again and again: a tenth of the whole build's time.
  $<$<CXX_COMPILER_ID:GNU>:--param=ggc-min-heapsize=524288>
  # False alarms of an optimising g++ 12: it sees one half of the pair in Asio's awaitable frames,
  # and bounds in std::string's concatenation that are not there. clang looks as well.
  $<$<AND:$<CXX_COMPILER_ID:GNU>,$<NOT:$<CONFIG:Debug>>>:-Wno-mismatched-new-delete
  -Wno-array-bounds -Wno-restrict -Wno-stringop-overflow -Wno-stringop-overread>
  $<$<BOOL:${CKPT_WERROR}>:-Werror>)
target_compile_definitions(ckpt_flags INTERFACE
  BOOST_ASIO_SEPARATE_COMPILATION BOOST_ASIO_NO_DEPRECATED _GLIBCXX_ASSERTIONS)
target_include_directories(ckpt_flags INTERFACE
  ${PROJECT_SOURCE_DIR}/libckpt ${PROJECT_SOURCE_DIR}/libckpt/include
  ${PROJECT_BINARY_DIR}/libckpt/include)
target_link_libraries(ckpt_flags INTERFACE Threads::Threads Boost::headers)
# Its headers only: ckpt_precompiled has its one compilation.
target_include_directories(ckpt_flags SYSTEM INTERFACE
  $<TARGET_PROPERTY:fmt::fmt,INTERFACE_INCLUDE_DIRECTORIES>)
if(CKPT_CCACHE)
  # ccache needs these to cache users of a precompiled header.
  target_compile_options(ckpt_flags INTERFACE
    $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>
    $<$<CXX_COMPILER_ID:Clang>:SHELL:-Xclang -fno-pch-timestamp>)
endif()
if(CKPT_SANITIZE)
  target_compile_options(ckpt_flags INTERFACE -fsanitize=${CKPT_SANITIZE} -fno-omit-frame-pointer
    -fno-sanitize-recover=all
    $<$<CXX_COMPILER_ID:Clang>:-fsanitize-ignorelist=${PROJECT_SOURCE_DIR}/cmake/ubsan_ignored.txt>)
  target_link_options(ckpt_flags INTERFACE -fsanitize=${CKPT_SANITIZE})
  if(CKPT_SANITIZE MATCHES thread)
    # Asio's fences are invisible to the thread sanitizer, and g++ warns of every one.
    target_compile_definitions(ckpt_flags INTERFACE BOOST_ASIO_DISABLE_FENCED_BLOCK)
    target_compile_options(ckpt_flags INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-tsan>)
  endif()
endif()

# The one precompiled header, and the single compilations of Asio and fmt beside it.
function(ckpt_use_precompiled_header target)
  if(CKPT_PRECOMPILED_HEADER)
    target_precompile_headers(${target} REUSE_FROM ckpt_precompiled)
  endif()
endfunction()

# EXCLUDE: what a source of this build must not match.
function(ckpt_module)
  cmake_parse_arguments(ARG "" "NAME;EXCLUDE" "DEPS;LIBS" ${ARGN})
  set(target ckpt_${ARG_NAME})
  list(TRANSFORM ARG_DEPS PREPEND ckpt_)
  set_property(GLOBAL APPEND PROPERTY CKPT_LIBRARIES ${ARG_LIBS})
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/libckpt/${ARG_NAME}/*.cpp)
  list(FILTER sources EXCLUDE REGEX "/main\\.cpp$")
  if(ARG_EXCLUDE)
    list(FILTER sources EXCLUDE REGEX "${ARG_EXCLUDE}")
  endif()
  if(NOT sources)
    add_library(${target} INTERFACE)
    target_link_libraries(${target} INTERFACE ckpt_flags ${ARG_DEPS} ${ARG_LIBS})
    return()
  endif()
  add_library(${target} STATIC ${sources})
  target_link_libraries(${target} PUBLIC ckpt_flags ${ARG_DEPS} ${ARG_LIBS})
  ckpt_use_precompiled_header(${target})
  set_property(GLOBAL APPEND PROPERTY CKPT_MODULE_TARGETS ${target})
endfunction()

# ckpt_program(TARGET ckptd OUTPUT ckptd SOURCES ... LIBS ...): a program, in bin/ of the build.
function(ckpt_program)
  cmake_parse_arguments(ARG "" "TARGET;OUTPUT" "SOURCES;LIBS" ${ARGN})
  add_executable(${ARG_TARGET} ${ARG_SOURCES})
  set_target_properties(${ARG_TARGET} PROPERTIES OUTPUT_NAME ${ARG_OUTPUT}
    RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
  target_link_libraries(${ARG_TARGET} PRIVATE ckpt_flags ${ARG_LIBS})
endfunction()
