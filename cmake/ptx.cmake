# GPU kernels. Each src/backend/cuda/kernels/*.cu goes two ways:
#   - clang (any Debian version from 14 on; no CUDA toolkit) makes PTX for its tier, embed_ptx.cmake checks it against what that
#     tier may use, and the text becomes bytes of heirloom_backend_cuda;
#   - the host compiler builds the same file for the emulator (library heirloom_cuda_emulator, in tests).
# <op>.cu is the sm_20 floor; <op>.sm61.cu and <op>.sm80.cu are faster variants. Files listed in HEIRLOOM_PTX_SM90 are compiled
# once more for sm_90, where launches may overlap (griddepcontrol).
find_program(HEIRLOOM_GPU_CLANG NAMES clang++ clang++-14 clang++-15 clang++-16 clang++-17 clang++-18 clang++-19)
if(NOT HEIRLOOM_GPU_CLANG)
  message(FATAL_ERROR "clang is needed to compile the GPU kernels: install the package clang (14 or newer)")
endif()

set(kernel_folder ${CMAKE_SOURCE_DIR}/src/backend/cuda/kernels)
set(ptx_folder ${CMAKE_BINARY_DIR}/ptx)
file(MAKE_DIRECTORY ${ptx_folder})
file(GLOB kernel_sources CONFIGURE_DEPENDS ${kernel_folder}/*.cu)
file(GLOB kernel_headers CONFIGURE_DEPENDS ${kernel_folder}/*.h)
set(embedded "")
set(kernel_launcher "")
if(CCACHE)
  set(kernel_launcher ${CCACHE})
endif()
set(module_list "")

# heirloom_ptx(SOURCE NAME TIER): adds the command that makes ${ptx_folder}/NAME.cc.
function(heirloom_ptx source name tier)
  # Tiers above 20 need a higher PTX version than clang's default for the target. clang 14 knows neither sm_90 nor PTX 7.8: it
  # compiles for sm_80 and embed_ptx.cmake raises the header, which inline asm needs and PTX's forward compatibility allows.
  set(arch sm_${tier})
  set(features "")
  if(tier EQUAL 61)
    set(features -Xclang -target-feature -Xclang +ptx50)
  elseif(tier GREATER_EQUAL 80)
    set(arch sm_80)
    set(features -Xclang -target-feature -Xclang +ptx70)
  endif()
  set(ptx ${ptx_folder}/${name}.ptx)
  # --cuda-path: an installed toolkit would raise the PTX version above what old drivers read.
  add_custom_command(OUTPUT ${ptx_folder}/${name}.cc
    COMMAND ${kernel_launcher} ${HEIRLOOM_GPU_CLANG} -x cuda --cuda-device-only --cuda-gpu-arch=${arch} -nocudainc -nocudalib
            --cuda-path=/nonexistent ${features} -std=c++20 -O3 -ffp-contract=off -Wall -Wextra -Wno-pass-failed
            -Wno-unknown-cuda-version -DGPU_TIER=${tier} -I${CMAKE_SOURCE_DIR}/src -S ${source} -o ${ptx}
    COMMAND ${CMAKE_COMMAND} -DPTX=${ptx} -DOUT=${ptx_folder}/${name}.cc -DNAME=${name} -DTIER=${tier}
            -P ${CMAKE_SOURCE_DIR}/cmake/embed_ptx.cmake
    DEPENDS ${source} ${kernel_headers} ${CMAKE_SOURCE_DIR}/cmake/embed_ptx.cmake
    COMMENT "PTX ${name}")
  set(embedded ${embedded} ${ptx_folder}/${name}.cc PARENT_SCOPE)
  set(module_list ${module_list} ${name} PARENT_SCOPE)
endfunction()

# Files that run in a decode step, where launches overlap on sm_90.
set(HEIRLOOM_PTX_SM90 gemv_f32_1 gemv_f32_4 gemv_f16_1 gemv_f16_4 gemv_bf16_1 gemv_bf16_4 gemv_q8_0_1 gemv_q8_0_4
  gemv_q4_0_1 gemv_q4_0_4 gemv_q4_k_1 gemv_q4_k_4 gemv_q5_k_1 gemv_q5_k_4 gemv_q6_k_1 gemv_q6_k_4 norms elementwise
  row_moves argmax weight_rows_f32 weight_rows_f16 weight_rows_bf16 weight_rows_q8_0 weight_rows_q4_0 weight_rows_q4_k
  weight_rows_q5_k weight_rows_q6_k gdn_recurrent_32 gdn_recurrent_64 gdn_recurrent_128 attention_prepare
  attention_decode_f32_4 attention_decode_f32_8 attention_decode_f16_4 attention_decode_f16_8 attention_decode_bf16_4
  attention_decode_bf16_8 attention_combine moe_route moe_combine)

set(emulator_sources "")
foreach(source ${kernel_sources})
  get_filename_component(name ${source} NAME_WLE)
  set(tier 20)
  if(name MATCHES "\\.sm([0-9]+)$")
    set(tier ${CMAKE_MATCH_1})
  endif()
  heirloom_ptx(${source} ${name} ${tier})
  set(tiers ${tier})
  if(name IN_LIST HEIRLOOM_PTX_SM90)
    heirloom_ptx(${source} ${name}.sm90 90)
    if(name MATCHES "^(gemv|attention_decode)_")  # the others differ from sm_20 in the wait instruction only
      list(APPEND tiers 90)
    endif()
  endif()
  # The emulator compiles a copy of its own: a .cu file has no language unless CMake enables CUDA, and a toolkit.
  foreach(emulated ${tiers})
    set(copy ${ptx_folder}/emulated_${name}_sm${emulated}.cc)
    file(GENERATE OUTPUT ${copy} CONTENT "#define GPU_EMULATOR 1\n#define GPU_TIER ${emulated}\n#include \"backend/cuda/kernels/${name}.cu\"\n")
    list(APPEND emulator_sources ${copy})
  endforeach()
endforeach()

# The table of all modules: each embedded file defines heirloom_ptx_<name>.
set(table "#include \"backend/cuda/modules.h\"\nnamespace heirloom::cuda {\n")
set(rows "")
foreach(name ${module_list})
  string(MAKE_C_IDENTIFIER ${name} id)
  string(APPEND table "extern const Module kModule_${id};\n")
  string(APPEND rows "    kModule_${id},\n")
endforeach()
string(APPEND table "std::span<const Module> modules() {\n  static const Module all[] = {\n${rows}  };\n  return all;\n}\n"
  "}  // namespace heirloom::cuda\n")
file(GENERATE OUTPUT ${ptx_folder}/modules.cc CONTENT "${table}")
target_sources(heirloom_backend_cuda PRIVATE ${ptx_folder}/modules.cc ${embedded})

file(GLOB emulator_own CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/backend/cuda_emulator/*.cc)
add_library(heirloom_cuda_emulator OBJECT ${emulator_own} ${emulator_sources})
target_link_libraries(heirloom_cuda_emulator PUBLIC heirloom_backend_cuda PRIVATE heirloom_options)
target_include_directories(heirloom_cuda_emulator PUBLIC ${CMAKE_SOURCE_DIR}/src)
# Kernels index with int as GPU code does, and the emulator needs its speed in every preset.
set_source_files_properties(${emulator_sources} PROPERTIES COMPILE_OPTIONS
  "-O2;-ffp-contract=off;-Wno-conversion;-Wno-sign-conversion;-Wno-shadow;-Wno-unused-function" OBJECT_DEPENDS "${kernel_headers}")

# Measurements on a GPU machine: cmake --build --preset release --target gpu_study.
add_executable(gpu_study EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/bench/gpu/gpu_study.cc)
target_link_libraries(gpu_study PRIVATE heirloom_options heirloom_tools)
