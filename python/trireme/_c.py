"""Made by scripts/make-python-binding from include/trireme/comm.h; not to be edited."""
from ctypes import (CFUNCTYPE, Structure, c_bool, c_char_p, c_double, c_int, c_int64, c_size_t, c_void_p)

# tr_device_kind
(TR_CPU, TR_CUDA) = range(2)
TR_DEVICE_KINDS = 16
# tr_status_code
(TR_OK, TR_END, TR_INVALID, TR_SHAPE, TR_DTYPE, TR_DEVICE, TR_UNSUPPORTED, TR_NO_MEMORY, TR_IO,
 TR_FORMAT, TR_NOT_FOUND, TR_STATE, TR_TIMEOUT, TR_PEER, TR_MISMATCH, TR_AUTH, TR_CANCELLED,
 TR_INTERRUPTED, TR_CHILD, TR_INTERNAL) = range(20)
# tr_dtype
(TR_F32, TR_F64, TR_F16, TR_BF16, TR_I64, TR_I32, TR_U8, TR_BOOL, TR_DTYPE_COUNT) = range(9)
# tr_collective_kind
(TR_ALL_REDUCE, TR_REDUCE, TR_BROADCAST, TR_ALL_GATHER, TR_GATHER, TR_SCATTER, TR_REDUCE_SCATTER,
 TR_ALL_TO_ALL, TR_ALL_GATHER_V, TR_GATHER_V, TR_SCATTER_V, TR_ALL_TO_ALL_V, TR_SEND, TR_RECV,
 TR_BARRIER, TR_COLLECTIVE_COUNT) = range(16)
# tr_reduce_op
(TR_SUM, TR_AVG, TR_MIN, TR_MAX, TR_PROD, TR_BAND, TR_BOR, TR_BXOR, TR_REDUCE_OP_COUNT) = range(9)
# tr_log_level
(TR_LOG_OFF, TR_LOG_ERROR, TR_LOG_WARN, TR_LOG_INFO, TR_LOG_DEBUG) = range(5)
# tr_any_peer
TR_ANY_SOURCE = -1


class tr_device(Structure):
    _fields_ = [
        ("kind", c_int),
        ("index", c_int),
    ]


class tr_store_tcp_options(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("given", c_char_p),
        ("host", c_char_p),
        ("port", c_int),
        ("serve", c_bool),
        ("listen_fd", c_int),
        ("token", c_char_p),
        ("timeout_ms", c_int),
        ("insecure", c_bool),
        ("max_bytes", c_int64),
    ]


class tr_store_custom_options(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("given", c_char_p),
        ("set", CFUNCTYPE(c_int, c_void_p, c_char_p, c_void_p, c_size_t)),
        ("get", CFUNCTYPE(c_int, c_void_p, c_char_p, c_int, c_void_p, c_void_p)),
        ("add", CFUNCTYPE(c_int, c_void_p, c_char_p, c_int64, c_void_p)),
        ("compare_set", CFUNCTYPE(c_int, c_void_p, c_char_p, c_void_p, c_size_t, c_void_p, c_size_t, c_int, c_void_p, c_void_p)),
        ("user", c_void_p),
        ("release", CFUNCTYPE(None, c_void_p)),
        ("name", c_char_p),
        ("host", c_char_p),
        ("token", c_char_p),
        ("timeout_ms", c_int),
        ("insecure", c_bool),
        ("delete_key", CFUNCTYPE(c_int, c_void_p, c_char_p, c_void_p)),
    ]


class tr_join_options(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("given", c_char_p),
        ("init", c_char_p),
        ("rank", c_int),
        ("world_size", c_int),
        ("store", c_void_p),
        ("token", c_char_p),
        ("backend", c_char_p),
        ("name", c_char_p),
        ("timeout_ms", c_int),
        ("insecure", c_bool),
        ("transport", c_char_p),
        ("address", c_char_p),
        ("algorithms", c_char_p),
        ("flight_dir", c_char_p),
        ("report_ms", c_int),
        ("check", c_bool),
        ("encrypt", c_bool),
        ("unexpected_bytes", c_int64),
        ("device", tr_device),
    ]


class tr_collective(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("kind", c_int),
        ("out", c_void_p),
        ("count", c_int64),
        ("in", c_void_p),
        ("dtype", c_int),
        ("op", c_int),
        ("root", c_int),
        ("peer", c_int),
        ("tag", c_int),
        ("in_counts", c_void_p),
        ("in_offsets", c_void_p),
        ("out_counts", c_void_p),
        ("out_offsets", c_void_p),
        ("timeout_ms", c_int),
        ("file", c_char_p),
        ("line", c_int),
        ("in_element", c_int),
        ("out_element", c_int),
        ("device", tr_device),
        ("stream", c_void_p),
        ("source", c_void_p),
    ]


# name, result, parameters
FUNCTIONS = [
    ("tr_version", c_char_p, []),
    ("tr_status_name", c_char_p, [c_int]),
    ("tr_error_message", c_char_p, []),
    ("tr_status_of", c_int, [c_void_p]),
    ("tr_fail", c_int, [c_int, c_char_p]),
    ("tr_release", None, [c_void_p]),
    ("tr_object_keep", c_void_p, [c_void_p]),
    ("tr_scope_push", None, []),
    ("tr_scope_pop", None, []),
    ("tr_shared_alloc", c_void_p, [c_size_t]),
    ("tr_shared_free", None, [c_void_p]),
    ("tr_shared_memalign", c_int, [c_void_p, c_size_t, c_size_t]),
    ("tr_shared_memalign_free", None, [c_void_p]),
    ("tr_set_log", None, [c_void_p, c_void_p, c_int]),
    ("tr_store_memory", c_void_p, []),
    ("tr_store_file_with", c_void_p, [c_void_p]),
    ("tr_store_tcp_with", c_void_p, [c_void_p]),
    ("tr_store_port", c_int, [c_void_p]),
    ("tr_store_custom_with", c_void_p, [c_void_p]),
    ("tr_store_prefix", c_void_p, [c_void_p, c_char_p]),
    ("tr_store_set", c_int, [c_void_p, c_char_p, c_void_p, c_size_t]),
    ("tr_store_get", c_int, [c_void_p, c_char_p, c_void_p, c_void_p]),
    ("tr_store_add", c_int, [c_void_p, c_char_p, c_int64, c_void_p]),
    ("tr_store_wait", c_int, [c_void_p, c_char_p, c_int]),
    ("tr_store_delete", c_int, [c_void_p, c_char_p, c_void_p]),
    ("tr_store_compare_set", c_int, [c_void_p, c_char_p, c_void_p, c_size_t, c_void_p, c_size_t, c_void_p, c_void_p]),
    ("tr_join_with", c_void_p, [c_void_p]),
    ("tr_launched", c_bool, [c_void_p, c_void_p, c_void_p]),
    ("tr_leave", c_int, [c_void_p]),
    ("tr_abort", None, [c_void_p, c_char_p]),
    ("tr_group_split_at", c_void_p, [c_void_p, c_int, c_int, c_char_p, c_int]),
    ("tr_group_new_at", c_void_p, [c_void_p, c_void_p, c_int, c_char_p, c_int]),
    ("tr_rank", c_int, [c_void_p]),
    ("tr_world_size", c_int, [c_void_p]),
    ("tr_local_rank", c_int, [c_void_p]),
    ("tr_group_device", tr_device, [c_void_p]),
    ("tr_group_device_named", c_int, [c_void_p, c_char_p, c_void_p]),
    ("tr_post", c_void_p, [c_void_p, c_void_p]),
    ("tr_wait", c_int, [c_void_p]),
    ("tr_wait_for", c_int, [c_void_p, c_int]),
    ("tr_work_done", c_bool, [c_void_p]),
    ("tr_run_collective", c_int, [c_void_p, c_void_p]),
    ("tr_post_list", c_void_p, [c_void_p, c_void_p, c_int]),
    ("tr_run_list", c_int, [c_void_p, c_void_p, c_int]),
    ("tr_all_gather_bytes_at", c_int, [c_void_p, c_void_p, c_size_t, c_void_p, c_void_p, c_char_p, c_int]),
    ("tr_broadcast_bytes_at", c_int, [c_void_p, c_void_p, c_void_p, c_int, c_char_p, c_int]),
    ("tr_agree_text", c_int, [c_void_p, c_char_p, c_char_p]),
    ("tr_agree_integer", c_int, [c_void_p, c_char_p, c_int64]),
    ("tr_agree_number", c_int, [c_void_p, c_char_p, c_double]),
    ("tr_agree_bytes", c_int, [c_void_p, c_char_p, c_void_p, c_size_t]),
    ("tr_algorithms", c_void_p, [c_char_p, c_int]),
    ("tr_schedule_find", c_int, [c_int, c_char_p, c_int, c_int64, c_void_p]),
    ("tr_schedule_steps", c_int64, [c_void_p]),
    ("tr_job_explain", c_int, [c_char_p, c_void_p]),
]
