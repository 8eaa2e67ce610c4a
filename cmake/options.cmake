# Compiler options that every target of ours shares. The baseline is plain x86-64: only files named after an ISA tier get
# ISA flags (cmake/layers.cmake), so that one binary starts on every CPU.
add_library(heirloom_options INTERFACE)
# -ffp-contract=off: GCC would otherwise fuse a multiply and an add where it likes (intrinsics too), differently in the body
# and in the tail of a loop, and a row's result would depend on its place. Kernels that want an FMA say so.
target_compile_options(heirloom_options INTERFACE -Wall -Wextra -Wshadow -Wconversion -fno-math-errno -ffp-contract=off)
target_include_directories(heirloom_options INTERFACE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include)
target_compile_definitions(heirloom_options INTERFACE HEIRLOOM_VERSION="${PROJECT_VERSION}")

if(HEIRLOOM_SANITIZE)
  add_compile_options(-fsanitize=${HEIRLOOM_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=undefined)
  add_link_options(-fsanitize=${HEIRLOOM_SANITIZE})
endif()

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${CCACHE})
endif()
