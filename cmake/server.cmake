# What the server needs besides its own sources: xgrammar as a static library, and the files of web/ compiled in.
file(STRINGS ${CMAKE_SOURCE_DIR}/third_party/xgrammar/requirements.txt xgrammar_pin REGEX "^xgrammar==")
string(REGEX REPLACE "^xgrammar==([^ ]+).*" "\\1" XGRAMMAR_VERSION "${xgrammar_pin}")
execute_process(COMMAND ${CMAKE_SOURCE_DIR}/scripts/fetch_xgrammar.sh OUTPUT_VARIABLE XGRAMMAR_DIR RESULT_VARIABLE xgrammar_failed
                OUTPUT_STRIP_TRAILING_WHITESPACE)
if(xgrammar_failed OR NOT EXISTS "${XGRAMMAR_DIR}/cpp")
  message(FATAL_ERROR "xgrammar ${XGRAMMAR_VERSION} is missing and could not be downloaded. scripts/install_deps.sh installs what the "
                      "build needs; without a network put the unpacked source into $HEIRLOOM_DEPS_DIR/xgrammar-${XGRAMMAR_VERSION}.")
endif()
file(GLOB_RECURSE xgrammar_sources ${XGRAMMAR_DIR}/cpp/*.cc)
list(FILTER xgrammar_sources EXCLUDE REGEX "/cpp/tvm_ffi/")
add_library(xgrammar STATIC ${xgrammar_sources})
target_include_directories(xgrammar SYSTEM PUBLIC ${XGRAMMAR_DIR}/include ${XGRAMMAR_DIR}/3rdparty/picojson
                           ${XGRAMMAR_DIR}/3rdparty/dlpack/include)
# Its warnings come to us (xgrammar_log.cc): a keyword that it would drop is a refused request, not a line on stderr.
target_compile_definitions(xgrammar PRIVATE XGRAMMAR_LOG_CUSTOMIZE=1 XGRAMMAR_ENABLE_CPPTRACE=0 XGRAMMAR_ENABLE_INTERNAL_CHECK=0)
target_compile_options(xgrammar PRIVATE -w)
if(HEIRLOOM_SANITIZE)  # its own project's to sanitize, and half of the build's time
  target_compile_options(xgrammar PRIVATE -fno-sanitize=all)
endif()

set(web_source ${CMAKE_BINARY_DIR}/web_assets_data.cc)
file(GLOB web_files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/web/*)
add_custom_command(OUTPUT ${web_source}
                   COMMAND ${CMAKE_COMMAND} -DOUTPUT=${web_source} -DFOLDER=${CMAKE_SOURCE_DIR}/web
                           -P ${CMAKE_SOURCE_DIR}/cmake/embed_web.cmake
                   DEPENDS ${web_files} ${CMAKE_SOURCE_DIR}/cmake/embed_web.cmake VERBATIM)
target_sources(heirloom_server PRIVATE ${web_source})
target_link_libraries(heirloom_server PRIVATE xgrammar)
# The log functions that xgrammar calls are ours: the two archives need each other, whatever order a linker meets them in.
target_link_libraries(xgrammar INTERFACE heirloom_server)
