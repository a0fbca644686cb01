/* The program of docs/tutorial.md. */
#include <tutorial.c>
