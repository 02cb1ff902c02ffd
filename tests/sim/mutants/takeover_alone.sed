# A new coordinator takes live nodes that have not reported yet for lost.
s/if \(report == nullptr && is_live\) view\.unreported\.push_back\(node\.name\);//
s/if \(is_live \|\| may_still_arrive\)/if (report != nullptr || (is_live \&\& may_still_arrive))/
