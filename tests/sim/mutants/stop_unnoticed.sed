# The lines go on after a stop of the process, with what came in the meantime.
s/if \(still >= still_max\(settings_\.lost_after, settings_\.beat\)\) begin_anew\(still\);/(void)still;/
