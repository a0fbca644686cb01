# cmake -DSOURCE=FOLDER -DOUTPUT=FILE -P commit.cmake: writes the commit that is built, "-dirty" when files differ from it, as
# TRIREME_COMMIT of a header. The header is touched only when it changes, so that nothing is compiled again without need.
cmake_policy(VERSION 3.25)
execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --abbrev=7 --exclude=* OUTPUT_VARIABLE commit
    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(failed)
    set(commit unknown)
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#define TRIREME_COMMIT \"@commit@\"\n" @ONLY)
