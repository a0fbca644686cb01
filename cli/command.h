/*
 * The commands of `trireme`: a row here and a file that defines its function. X(name, function, "what it does")
 * A command gets its own name as argv[0] and returns the exit code.
 */
#ifndef TRIREME_CLI_COMMAND_H
#define TRIREME_CLI_COMMAND_H

#define TR__COMMANDS(X)                                                          \
    X("run", tr__cli_run, "run a program as the ranks of a job on this machine") \
    X("cluster", tr__cli_cluster, "run a program on several machines, and look after it")  \
    X("train", tr__cli_train, "train a model, on one process or several")        \
    X("sample", tr__cli_sample, "let a trained model write")                     \
    X("checkpoint", tr__cli_checkpoint, "verify, show and compare checkpoints")   \
    X("tokenizer", tr__cli_tokenizer, "learn a vocabulary, and cut texts into tokens") \
    X("bench", tr__cli_bench, "measure how fast training is here")               \
    X("algorithms", tr__cli_algorithms, "print the table that chooses the algorithms of collectives between hosts")  \
    X("why", tr__cli_why, "show what the ranks of running jobs wait for, and the likely culprit") \
    X("doctor", tr__cli_doctor, "say what this machine offers to training, and what is wrong")

#define TR__DECLARE(name, function, help) int function(int argc, char **argv);
TR__COMMANDS(TR__DECLARE)
#undef TR__DECLARE

#endif
