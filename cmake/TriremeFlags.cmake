# How Trireme's own files are compiled. No -ffast-math: results must not depend on how a loop was vectorised, and NaN
# must stay NaN. No -march=native: one build runs on every machine of a cluster.
if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "build type" FORCE)
endif()
set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_FLAGS_RELWITHDEBINFO "-O3 -g")
add_compile_options($<$<COMPILE_LANGUAGE:C>:-fno-math-errno> $<$<COMPILE_LANGUAGE:C>:-fno-trapping-math>)
# __FILE__ in messages and flight records: src/…, not where the tree lay when it was built.
add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=>)

set(TRIREME_WARNINGS -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith)

# One or more of address, undefined, thread, as in -DTRIREME_SANITIZE=address,undefined. Either compiler does; gcc is
# the default because Debian's brings the run-time libraries along.
set(TRIREME_SANITIZE "" CACHE STRING "sanitizers to build with")
if(TRIREME_SANITIZE)
    set(CMAKE_C_FLAGS_RELWITHDEBINFO "-O1 -g")
    set(sanitize -fsanitize=${TRIREME_SANITIZE} -fno-omit-frame-pointer)
    if(TRIREME_SANITIZE MATCHES "undefined")
        list(APPEND sanitize -fno-sanitize-recover=undefined)
    endif()
    add_compile_options(${sanitize})
    # Programs in C that open a plug-in in C++ lack the half of the run-time library that these two checks of clang's call.
    add_compile_options("$<$<COMPILE_LANG_AND_ID:CXX,Clang>:-fno-sanitize=vptr,function>")
    add_link_options(${sanitize})
endif()
