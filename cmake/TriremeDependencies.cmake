# The libraries that Trireme needs. trireme_dependencies carries them inside this build; TRIREME_LINK_NAMES and
# TRIREME_PC_REQUIRES name them for whoever links the installed static library.
set(TRIREME_PC_REQUIRES libuv openssl libcjson zlib libpng libjpeg)
set(hint "is missing. On Debian, `make deps` installs it.")

add_library(trireme_dependencies INTERFACE)
foreach(module ${TRIREME_PC_REQUIRES})
    pkg_check_modules(${module} QUIET IMPORTED_TARGET ${module})
    if(NOT ${module}_FOUND)
        message(FATAL_ERROR "Trireme: ${module} ${hint}")
    endif()
    target_link_libraries(trireme_dependencies INTERFACE PkgConfig::${module})
    list(APPEND TRIREME_LINK_NAMES PkgConfig::${module})
endforeach()

# oneDNN's own CMake package asks for OpenCL, which Trireme has no use for, and Debian's has no pkg-config file.
find_library(DNNL_LIBRARY dnnl)
find_path(DNNL_INCLUDE_DIR oneapi/dnnl/dnnl.h)
if(NOT DNNL_LIBRARY OR NOT DNNL_INCLUDE_DIR)
    message(FATAL_ERROR "Trireme: oneDNN (libdnnl) ${hint}")
endif()
target_include_directories(trireme_dependencies SYSTEM INTERFACE ${DNNL_INCLUDE_DIR})
target_link_libraries(trireme_dependencies INTERFACE ${DNNL_LIBRARY} Threads::Threads m ${CMAKE_DL_LIBS})
list(APPEND TRIREME_LINK_NAMES dnnl Threads::Threads m ${CMAKE_DL_LIBS})
