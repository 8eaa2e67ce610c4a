# Turns PTX text into a C++ source that defines its row of the module table; refuses text that the tier could not load.
# sm_20: the last Fermi driver (R390, CUDA 9.1) reads PTX up to 6.1, and compute capability 2.0 has no shuffle, no
# ld.global.nc, no fp16 arithmetic, no double atomics; calls would need a stack in hot kernels.
file(READ ${PTX} text)
if(TIER EQUAL 90)
  set(version 7.8)
  if(text MATCHES "st\\.async|mbarrier")  # messages to shared memory
    set(version 8.1)
  endif()
  string(REGEX REPLACE "\\.version [0-9.]+" ".version ${version}" text "${text}")
  string(REGEX REPLACE "\\.target sm_[0-9]+" ".target sm_90" text "${text}")
endif()
if(TIER EQUAL 20)
  if(NOT text MATCHES "\\.version (3\\.[12]|4\\.[0-3]|5\\.0|6\\.[01])[^0-9]" OR NOT text MATCHES "\\.target sm_20")
    message(FATAL_ERROR "${PTX}: wrong .version or .target for sm_20")
  endif()
  set(allowed abs add and atom bar bfe bfi bra brev clz cos cvt cvta div ex2 exit fma ld lg2 mad max min mov mul neg not
    or popc prmt rcp red rem ret rsqrt sad selp set setp shl shr sin slct sqrt st sub xor)
  string(REGEX MATCHALL "\n\t(@!?%p[0-9]+[ \t]+)?[a-z][a-z0-9]*" found "${text}")
  string(REGEX REPLACE "\n\t(@!?%p[0-9]+[ \t]+)?" "" found "${found}")
  list(REMOVE_DUPLICATES found)
  list(REMOVE_ITEM found ${allowed})
  if(found OR text MATCHES
     "ld\\.global\\.nc|\\.sync\\.|\\.f16x2|(add|sub|mul|fma)[.a-z]*\\.f16|atom[.a-z]*\\.f64|\\.bf16|\\.extern \\.func")
    message(FATAL_ERROR "${PTX}: not for compute capability 2.0: ${found} ${CMAKE_MATCH_0}")
  endif()
endif()
if(text MATCHES "__local_depot")
  message(WARNING "${PTX}: uses local memory (an array indexed at run time, or a struct copied whole)")
endif()
string(REGEX MATCHALL "\\.entry [A-Za-z0-9_]+" kernels "${text}")
list(TRANSFORM kernels REPLACE "\\.entry " "")
string(REPLACE ";" " " kernels "${kernels}")
string(REGEX REPLACE "\n[ \t]*//[^\n]*" "" text "${text}")
string(LENGTH "${text}" bytes)
string(MAKE_C_IDENTIFIER ${NAME} id)
# Pieces of at most 8,000 characters: compilers need not take longer literals.
set(literal "")
string(LENGTH "${text}" left)
set(at 0)
while(at LESS left)
  string(SUBSTRING "${text}" ${at} 8000 piece)
  string(APPEND literal "R\"PTX(${piece})PTX\"\n")
  math(EXPR at "${at} + 8000")
endwhile()
file(WRITE ${OUT} "#include \"backend/cuda/modules.h\"\nnamespace heirloom::cuda {\nstatic const char kText[] = ${literal};\n"
  "extern const Module kModule_${id};\nconst Module kModule_${id} = {\"${NAME}\", ${TIER}, \"${kernels}\", kText, sizeof(kText) - 1};\n"
  "}  // namespace heirloom::cuda\n")
