use super::support::limits_elsewhere;

// The mirror knows no templates.
earmark_admission::conformance_of_limits!(limits_elsewhere);
earmark_admission::conformance_of_extensions!(limits_elsewhere);
earmark_admission::conformance_of_credit!(limits_elsewhere);
